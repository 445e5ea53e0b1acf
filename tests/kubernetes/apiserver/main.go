// A real kube-apiserver on a real etcd, for tests: on ports of its own on
// loopback, with all it keeps in one directory, and gone when its parent is.
//
// What it prints and the commands it takes are in ../README.md.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // pods of a CronJob may name a time zone, and the machine may know none
)

func main() {
	// The kube-apiserver is a process of its own, so that it can be stopped and
	// started while etcd stays.
	if len(os.Args) > 1 && os.Args[1] == serveCommand {
		if err := serve(os.Args[2:]); err != nil {
			fail(err)
		}
		return
	}
	if err := supervise(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "apiserver:", err)
	os.Exit(1)
}

// started is the first line on stdout.
type started struct {
	URL        string `json:"url"`
	Kubeconfig string `json:"kubeconfig"`
	// A token of the group system:masters.
	Token string `json:"token"`
	// The token of a kubelet: user system:node:<node>, group system:nodes.
	NodeToken string `json:"node_token"`
	// The path of the PEM file to trust.
	CA string `json:"ca"`
}

// done is the answer to a command.
type done struct {
	Done string `json:"done"`
	// With "compact": the revision up to which history is gone.
	Revision int64 `json:"revision,omitempty"`
}

func supervise() error {
	directory := flag.String("data", "", "`directory` for etcd, certificates and logs (default: one that is removed at the end)")
	kubeconfig := flag.String("kubeconfig", "", "`path` to write the admin's kubeconfig to (default: in the data directory)")
	node := flag.String("node", "node1", "`name` of the node that the node token is for")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("nothing but flags is taken, not %q", flag.Arg(0))
	}
	if *directory == "" {
		temporary, err := os.MkdirTemp("", "kube-apiserver-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		*directory = temporary
	}
	files, err := prepareFiles(*directory, *node)
	if err != nil {
		return err
	}
	if *kubeconfig != "" {
		files.kubeconfig = *kubeconfig
	}
	store, err := startEtcd(files)
	if err != nil {
		return err
	}
	defer store.close()
	server := &apiserver{files: files, etcd: store.url}
	if err := server.start(); err != nil {
		return err
	}
	defer server.stop()
	if err := files.writeKubeconfig(server.url()); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	err = out.Encode(started{server.url(), files.kubeconfig, files.adminToken, files.nodeToken, files.ca()})
	if err != nil {
		return err
	}
	return obey(server, store, out)
}

// obey runs the commands on stdin until it is closed (the parent is gone or has
// had enough) or a signal comes.
func obey(server *apiserver, store *etcdServer, out *json.Encoder) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	commands := make(chan string)
	go func() {
		defer close(commands)
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			commands <- lines.Text()
		}
	}()
	for {
		select {
		case <-signals:
			return nil
		case command, open := <-commands:
			if !open {
				return nil
			}
			answer, err := run(command, server, store)
			if err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
			if err := out.Encode(answer); err != nil {
				return err
			}
		}
	}
}

func run(command string, server *apiserver, store *etcdServer) (answer done, err error) {
	answer.Done = command
	switch command {
	case "stop":
		server.stop()
	case "start":
		err = server.start()
	case "restart":
		server.stop()
		err = server.start()
	case "compact":
		answer.Revision, err = store.compact()
	default:
		err = fmt.Errorf("no such command")
	}
	return answer, err
}
