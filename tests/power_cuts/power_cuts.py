"""One file system under power cuts: see `run`."""

import atexit
import errno
import http.client
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import fuse

PROGRAM = os.environ["PODMUX_POWER_CUTS_PROGRAM"]
SIZE = 512 << 20
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q"],
    "btrfs": ["mkfs.btrfs", "-q"],
}
PODS = "/api/v1/namespaces/default/pods"
HEAD = struct.Struct("<cQI")
STEPS = 60
# How often the device fails.
FAILURES = 20
# The seconds in which an agent starts, or answers.
PATIENCE = 60


class Recorder(fuse.Operations):
    """A directory with one file, `disk`. Each write and each flush of it is appended to a log. While `fails` is set,
    each write sets `failing`, waits for `goes_on` and fails."""

    def __init__(self, device):
        self.device = device
        self.disk = os.open(device.disk, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.ftruncate(self.disk, SIZE)
        self.log = open(device.log, "wb", buffering=0)

    def getattr(self, path, fh=None):
        if path == "/":
            return {"st_mode": 0o40700, "st_nlink": 2}
        return {"st_mode": 0o100600, "st_nlink": 1, "st_size": SIZE}

    def readdir(self, path, fh):
        return [".", "..", "disk"]

    def open(self, path, flags):
        return 0

    def read(self, path, size, offset, fh):
        return os.pread(self.disk, size, offset)

    def write(self, path, data, offset, fh):
        if self.device.fails.is_set():
            self.device.failing.set()
            # The events are cleared together, so it may miss that `goes_on` was set.
            while self.device.fails.is_set() and not self.device.goes_on.wait(0.1):
                pass
            raise fuse.FuseOSError(errno.EIO)
        self.log.write(HEAD.pack(b"w", offset, len(data)) + data)
        return os.pwrite(self.disk, data, offset)

    def fsync(self, path, datasync, fh):
        self.log.write(HEAD.pack(b"f", 0, 0))
        return 0


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout.strip()


class Device:
    """A recorded device with a file system."""

    def __init__(self, system, place):
        self.log, self.disk, self.directory = (os.path.join(place, name) for name in ("log", "disk", "device"))
        self.fails, self.failing, self.goes_on = (multiprocessing.Event() for _ in range(3))
        self.system, self.file = system, os.path.join(self.directory, "disk")

    def __enter__(self):
        os.makedirs(self.directory, exist_ok=True)
        # Not FUSE's own fork: this process waits for it.
        serve = lambda: fuse.FUSE(Recorder(self), self.directory, foreground=True, nothreads=True)
        self.server = multiprocessing.Process(target=serve, daemon=True)
        self.server.start()
        while not os.path.exists(self.file):
            time.sleep(0.01)
        try:
            run(*MAKE[self.system], self.file)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        run("umount", self.directory)
        self.server.join()

    def position(self):
        return os.path.getsize(self.log)


class Mounted:
    """A file system in a file, mounted through a loop device."""

    def __init__(self, file, directory):
        self.directory = directory
        self.device = run("losetup", "--find", "--show", file)
        try:
            run("mount", self.device, directory)
        except subprocess.CalledProcessError as error:
            run("losetup", "--detach", self.device)
            raise SystemExit(f"it cannot be mounted: {error.stderr}")

    def __enter__(self):
        return self.directory

    def __exit__(self, *_):
        run("umount", self.directory)
        run("losetup", "--detach", self.device)


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Agent:
    """An agent with this state directory."""

    def __init__(self, state, place):
        self.socket = os.path.join(place, "socket")
        self.log = open(os.path.join(place, "agent.log"), "w+")
        command = [PROGRAM, "run", "--hostname-override", "node1", "--pod-manifest-path", "none"]
        command += ["--sink", "jsonl=" + os.path.join(place, "updates.jsonl")]
        command += ["--state-dir", state, "--listen", "unix:" + self.socket]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL)
        self.connection = Connection(self.socket)
        deadline = time.monotonic() + PATIENCE
        # An agent that cannot open its state serves, and is not ready.
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.log.seek(0)
                raise SystemExit("the agent has ended, or is not ready: " + self.log.read())
            time.sleep(0.002)

    def is_ready(self):
        try:
            self.connection.request("GET", "/readyz")
            response = self.connection.getresponse()
            response.read()
            return response.status == 200
        except OSError:
            self.connection.close()
            return False

    def ask(self, method, path, body=None):
        headers = {"Content-Type": "application/json"}
        self.connection.request(method, path, body and json.dumps(body), headers)
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        if response.status >= 300:
            raise SystemExit(f"{method} {path}: {response.status} {answer}")
        return answer

    def pods(self):
        items = self.ask("GET", "/api/v1/pods")["items"]
        return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in items}

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()


def pod(name, image):
    containers = [{"name": "main", "image": image}]
    metadata = {"name": name, "annotations": {"padding": "x" * random.choice([0, 900, 9000])}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def history(agent, position):
    """Creates, replaces and deletes pods. Returns for each step when it began, when it was acknowledged, and the
    pods that there are after it."""
    pods, steps = {}, []
    for number in range(STEPS):
        begun = position()
        name = f"pod{random.randrange(12)}"
        if name not in pods:
            pods[name] = f"i:{number}"
            agent.ask("POST", PODS, pod(name, pods[name]))
        elif random.random() < 0.4:
            agent.ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
            del pods[name]
        else:
            pods[name] = f"i:{number}"
            agent.ask("PUT", f"{PODS}/{name}", pod(name, pods[name]))
        steps.append((begun, position(), dict(pods)))
        if random.random() < 0.3:
            # The seal follows 50 ms after a commit.
            time.sleep(0.06)
    return steps


def record(system, place):
    """Records a history. Returns where it began in the log, and its steps."""
    with Device(system, place) as device, Mounted(device.file, os.path.join(place, "live")) as live:
        os.sync()
        start = device.position()
        agent = Agent(os.path.join(live, "state"), place)
        try:
            steps = history(agent, device.position)
        finally:
            agent.end()
    return start, steps


def fail(system, place):
    """The device fails while the agent stores a pod. Every other time the agent is killed before it notices that, and
    started again. What is acknowledged afterwards must be there after a power cut. Returns how often it could go on."""
    image, pods, went_on = os.path.join(place, "image"), {}, 0
    with Device(system, place) as device:
        for number in range(FAILURES):
            with Mounted(device.file, os.path.join(place, "live")) as live:
                agent = Agent(os.path.join(live, "state"), place)
                try:
                    store(agent, pods, f"before{number}")
                    os.sync()
                    during, is_killed = pod(f"during{number}", "i:1"), number % 2 == 0
                    if post_to_failing(device, agent, during, is_killed):
                        raise SystemExit(f"failure {number} was acknowledged")
                    if is_writable(live):
                        if is_killed:
                            agent.end()
                            agent = Agent(os.path.join(live, "state"), place)
                        store(agent, pods, f"after{number}")
                        went_on += 1
                    run("cp", "--sparse=always", device.disk, image)
                finally:
                    agent.end()
            check(image, place, number, [(number, number, pods)])
    return went_on


def is_writable(directory):
    """Not if what the file system itself has written failed, too. Then nothing can be stored before a reboot."""
    try:
        file = os.open(os.path.join(directory, "file"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError:
        return False
    return True


def store(agent, pods, name):
    """Creates a pod, and notes the pods that there are then."""
    agent.ask("POST", PODS, pod(name, "i:1"))
    pods[name] = "i:1"
    found = agent.pods()
    if pods.items() - found.items():
        raise SystemExit(f"{found} are left of {pods}")
    pods.update(found)


def post_to_failing(device, agent, pod, is_killed):
    """Posts a pod while all writes to the device fail. Returns whether it was acknowledged."""
    answers = []

    def post():
        try:
            answers.append(agent.ask("POST", PODS, pod))
        except (OSError, SystemExit):
            agent.connection.close()

    # A late write of the round before may have set it again.
    device.failing.clear()
    device.fails.set()
    thread = threading.Thread(target=post)
    thread.start()
    if not device.failing.wait(PATIENCE):
        raise SystemExit("the agent writes nothing")
    if is_killed:
        # It ends when the write does.
        agent.process.send_signal(signal.SIGKILL)
    device.goes_on.set()
    if is_killed:
        agent.process.wait()
    thread.join()
    for event in (device.fails, device.failing, device.goes_on):
        event.clear()
    return bool(answers)


def records(log):
    """The records of a log, each with the position after it."""
    with open(log, "rb") as file:
        while head := file.read(HEAD.size):
            kind, offset, length = HEAD.unpack(head)
            data = file.read(length)
            yield file.tell(), kind, offset, data


def right(position, steps):
    """What may be there after a cut at this position: after the acknowledged steps, and one more if it had begun."""
    acknowledged = [pods for begun, done, pods in steps if done <= position]
    begun = [pods for begun, done, pods in steps if begun <= position < done]
    return [acknowledged[-1] if acknowledged else {}] + begun


def check(file, place, position, steps):
    """Mounts what a cut has left, and compares what an agent finds there."""
    mounted, copy = os.path.join(place, "mounted"), os.path.join(place, "copy")
    shutil.rmtree(copy, ignore_errors=True)
    with Mounted(file, mounted):
        if os.path.exists(os.path.join(mounted, "state")):
            shutil.copytree(os.path.join(mounted, "state"), copy)
    agent = Agent(copy, place)
    try:
        found = agent.pods()
    finally:
        agent.end()
    expected = right(position, steps)
    if found not in expected:
        raise SystemExit(f"a cut at {position} left {found}, not one of {expected}")


def replay(place, start, steps):
    """Cuts after every write, with all writes before it, and with only some of those since the last flush."""
    image, torn = os.path.join(place, "image"), os.path.join(place, "torn")
    cuts, since, flushed = 0, [], os.path.join(place, "flushed")
    for path in (image, flushed):
        with open(path, "wb") as file:
            file.truncate(SIZE)
    with open(image, "r+b", buffering=0) as whole, open(flushed, "r+b", buffering=0) as old:
        for position, kind, offset, data in records(os.path.join(place, "log")):
            if kind == b"w":
                os.pwrite(whole.fileno(), data, offset)
                since.append((offset, data))
            else:
                for offset, data in since:
                    os.pwrite(old.fileno(), data, offset)
                since.clear()
            if position < start:
                continue
            for base, writes in ((image, []), (flushed, [w for w in since if random.random() < 0.5])):
                run("cp", "--sparse=always", base, torn)
                with open(torn, "r+b", buffering=0) as file:
                    for offset, data in writes:
                        os.pwrite(file.fileno(), data, offset)
                check(torn, place, position, steps)
                cuts += 1
    return cuts


def main():
    system = sys.argv[1]
    if system not in MAKE:
        raise SystemExit(f"{system}: not one of {', '.join(MAKE)}")
    random.seed(int(os.environ.get("PODMUX_POWER_CUTS_SEED", "1")))
    place = tempfile.mkdtemp(prefix="podmux-power-", dir="/dev/shm")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for directory in ("live", "mounted"):
        os.mkdir(os.path.join(place, directory))
    went_on = fail(system, place)
    assert went_on > FAILURES // 2, f"after {FAILURES} failures the agent went on only {went_on} times"
    print(f"{system}: {FAILURES} failures of the device, nothing lost, went on after {went_on}")
    start, steps = record(system, place)
    began = time.monotonic()
    cuts = replay(place, start, steps)
    assert cuts > 2 * STEPS, "the device has recorded fewer writes than there were commits"
    print(f"{system}: {cuts} power cuts, {len(steps)} acknowledged steps, nothing lost, {time.monotonic() - began:.0f} s")


main()
