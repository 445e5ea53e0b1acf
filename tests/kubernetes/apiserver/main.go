// apiserver runs a kube-apiserver and an etcd for tests, on free ports of the loopback interface.
// Its data is in one directory. It exits when its parent process exits.
//
// ../README.md describes its output and its commands.
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
	_ "time/tzdata" // to validate the time zone of a CronJob on a machine without the database
)

func main() {
	// The kube-apiserver is a separate process, so that it can restart while etcd runs on.
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
	// The token of a user without permissions.
	NobodyToken string `json:"nobody_token"`
	// The path of the CA certificate, a PEM file.
	CA string `json:"ca"`
}

func supervise() error {
	directory := flag.String("data", "", "`directory` for etcd, certificates and logs (default: a temporary one, removed at exit)")
	kubeconfig := flag.String("kubeconfig", "", "`path` to write the admin's kubeconfig to (default: in the data directory)")
	node := flag.String("node", "node1", "`name` of the node that the node token is for")
	flag.Parse()
	// The arguments after "--" are flags of the kube-apiserver.
	if flag.NArg() > 0 && !strings.HasPrefix(flag.Arg(0), "--") {
		return fmt.Errorf("unexpected argument %q: only flags are allowed", flag.Arg(0))
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
	c := &cluster{files, store, &apiserver{files: files, etcd: store.url(), extra: flag.Args()}}
	// Not c.etcd itself: restore replaces it.
	defer func() { c.etcd.close() }()
	defer c.server.stop()
	if err := c.server.start(); err != nil {
		return err
	}
	if err := files.writeKubeconfig(c.server.url()); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	err = out.Encode(started{
		c.server.url(), files.kubeconfig, files.token["admin"], files.token["node"], files.token["nobody"], files.ca(),
	})
	if err != nil {
		return err
	}
	return runCommands(c, out)
}

// runCommands runs the commands on stdin until stdin is closed or a signal arrives.
// The kernel closes stdin when the parent process exits.
func runCommands(c *cluster, out *json.Encoder) error {
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
			answer, err := c.run(command)
			if err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
			if err := out.Encode(answer); err != nil {
				return err
			}
		}
	}
}
