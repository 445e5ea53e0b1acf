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
	"strings"
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
	// The token of a user who may do nothing.
	NobodyToken string `json:"nobody_token"`
	// The path of the PEM file to trust.
	CA string `json:"ca"`
}

func supervise() error {
	directory := flag.String("data", "", "`directory` for etcd, certificates and logs (default: one that is removed at the end)")
	kubeconfig := flag.String("kubeconfig", "", "`path` to write the admin's kubeconfig to (default: in the data directory)")
	node := flag.String("node", "node1", "`name` of the node that the node token is for")
	flag.Parse()
	// What is behind a "--" is for the kube-apiserver.
	if flag.NArg() > 0 && !strings.HasPrefix(flag.Arg(0), "--") {
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
	store, err := startEtcd(files, anyPort)
	if err != nil {
		return err
	}
	it := &cluster{files, store, &apiserver{files: files, etcd: store.url(), extra: flag.Args()}}
	defer func() { it.etcd.close() }()
	defer it.server.stop()
	if err := it.server.start(); err != nil {
		return err
	}
	if err := files.writeKubeconfig(it.server.url()); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	err = out.Encode(started{
		it.server.url(), files.kubeconfig, files.token["admin"], files.token["node"], files.token["nobody"], files.ca(),
	})
	if err != nil {
		return err
	}
	return obey(it, out)
}

// obey runs the commands on stdin until it is closed (the parent is gone or has
// had enough) or a signal comes.
func obey(it *cluster, out *json.Encoder) error {
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
			answer, err := it.run(command)
			if err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
			if err := out.Encode(answer); err != nil {
				return err
			}
		}
	}
}
