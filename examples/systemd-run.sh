#!/bin/sh
# A program for podmux's exec runtime (docs/exec.md): the first container of a pod runs as a service of systemd.
# It needs jq. The service has the name of the pod's UID, so each operation can be repeated, and the hash
# in its description, so only what has changed is restarted. Unlike a kubelet, systemd takes an end by SIGHUP, SIGINT or
# SIGTERM for a success (OnFailure), lets the other processes of a service go on whose first one has succeeded, and
# never gives a service longer to stop than terminationGracePeriodSeconds.
set -eu
# A manifest can have any UID. systemctl would take some for a pattern, and the name of a unit has at most 255
# characters, so nothing is started for them.
reject_uid() {
    case $PODMUX_OP in DELETE | REMOVE) exit 0 ;; esac
    echo "metadata.uid may have only letters, digits, '.', '_' and '-' here, and 200 characters" >&2
    exit 1
}
case $PODMUX_POD_UID in *[!0-9A-Za-z._-]*) reject_uid ;; esac
[ "${#PODMUX_POD_UID}" -le 200 ] || reject_uid
unit=podmux-$PODMUX_POD_UID.service
description="pod $PODMUX_POD_NAMESPACE/$PODMUX_POD_NAME $PODMUX_HASH"
show() { systemctl show --property="$1" --value "$unit"; }
# To stop a service that does not exist is no failure. One that has failed stays loaded until it is reset.
stop() {
    systemctl stop "$unit" || [ "$(show LoadState)" = not-found ] || return 1
    systemctl reset-failed "$unit" 2> /dev/null || true
}

case $PODMUX_OP in
ADD | UPDATE | RECONCILE)
    # References to variables are replaced as Kubernetes does it, and those with valueFrom are not set. `env` sets
    # variables with any name, and `nice` runs a program that has a `=` in its path.
    container=$(jq -r '.spec as $pod | $pod.containers[0] as $container |
        if $pod.hostUsers == false then
            "hostUsers: false needs a user namespace, and this program makes none\n" | halt_error(1)
        else . end |
        def expand($values): gsub("[$](?<name>[$]|[(][^)]*[)])";
            if .name == "$" then "$" else $values[.name[1:-1]] // "$\(.name)" end);
        reduce ($container.env[]? | select(.valueFrom | not)) as $variable
            ({}; .[$variable.name] = (. as $values | $variable.value // "" | expand($values))) | . as $values |
        [$container.command[]?, $container.args[]? | expand($values)] as $words |
        [$values | to_entries[] | "\(.key)=\(.value)"] as $variables |
        [$words[0] // "", $values.PATH // "",
            (["env", "--", $variables[], "/usr/bin/nice", "-n", "0", "--", $words[]] | @sh),
            "--property=TimeoutStopSec=\([([$pod.terminationGracePeriodSeconds // 30, 1] | max), 1000000000] | min)",
            # A pod that is never started again stays loaded when it has failed.
            ({"Never": ["no"], "OnFailure": ["on-failure", "--collect"]}[$pod.restartPolicy // ""]
                // ["always", "--collect"] | "--property=Restart=\(.[0])", .[1:][]),
            "--property=RemainAfterExit=\($pod.restartPolicy == "Never" or $pod.restartPolicy == "OnFailure")"] | @sh') || exit 1
    eval "set -- $container"
    program=$1 path=$2 command=$3
    shift 3
    case $(show ActiveState) in
    # It ends by itself. A stop that was asked for is to be followed by a start.
    deactivating) [ -n "$(show Job)" ] || is_there=yes ;;
    active | activating | failed) is_there=yes ;;
    esac
    if [ "${is_there-}" ] && [ "$(show Description)" = "$description" ]; then exit 0; fi
    (PATH=${path:-$PATH} && command -v -- "$program" > /dev/null) || {
        echo "spec.containers[0]: there is no program '$program'" >&2
        exit 1
    }
    stop
    # The command is a script, as the standard input of a shell: an ExecStart= that has a $ or ; is another one after a
    # daemon-reload. It comes in parts because an argument has at most 128 KiB.
    for part in $(printf 'exec %s < /dev/null' "$command" | base64 --wrap=65536); do
        set -- "$@" "--property=StandardInputData=$part"
    done
    # As in a container, SIGTERM is for the first process, and the others end with it.
    # What did not start is not taken for a pod that runs, or that has failed, at the next attempt. systemd-run fails,
    # too, for a program that failed before systemd saw it start; a status from 200 to 249 is systemd's own.
    systemd-run --quiet --unit="$unit" --description="$description" --property=Type=exec \
        --property=RestartSec=1 --property=StartLimitIntervalSec=0 --property=KillMode=mixed \
        --property=IgnoreSIGPIPE=no --property=StandardInput=data "$@" -- /bin/sh ||
        case "$(show Result) $(show ExecMainStatus)" in
        "exit-code 2"[0-4]?) stop && exit 1 ;;
        "exit-code "* | "signal "* | "core-dump "*) ;;
        *) stop && exit 1 ;;
        esac
    ;;
DELETE)
    # Within the grace of the deletion, which may be shorter than the pod's.
    timeout --foreground "$(jq '[.metadata.deletionGracePeriodSeconds, 1] | max')" systemctl stop "$unit" ||
        systemctl kill --signal=KILL "$unit" || true
    stop
    ;;
REMOVE) stop ;;
esac
