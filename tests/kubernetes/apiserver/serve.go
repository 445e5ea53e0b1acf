package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// serveCommand is the argument with which this program runs as the kube-apiserver.
const serveCommand = "kube-apiserver"

// After a restart the previous process may still hold the port.
const (
	bindTimeout  = 30 * time.Second
	bindInterval = 10 * time.Millisecond
)

// serve runs the kube-apiserver: the first argument is the address to listen on,
// the others are its flags. It prints the port it listens on.
func serve(args []string) error {
	// The supervisor never writes to stdin: the copy ends when the supervisor exits.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	listener, err := listen(args[0])
	if err != nil {
		return err
	}
	address := listener.Addr().(*net.TCPAddr)
	server := options.NewServerRunOptions()
	flags := pflag.NewFlagSet(serveCommand, pflag.ContinueOnError)
	for _, set := range server.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if err := server.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	server.SecureServing.Listener = listener
	server.SecureServing.BindPort = address.Port
	fmt.Println(address.Port)
	ctx := genericapiserver.SetupSignalContext()
	completed, err := server.Complete(ctx)
	if err != nil {
		return err
	}
	if problems := completed.Validate(); len(problems) > 0 {
		return utilerrors.NewAggregate(problems)
	}
	return app.Run(ctx, completed)
}

func listen(address string) (net.Listener, error) {
	deadline := time.Now().Add(bindTimeout)
	for {
		// Without SO_REUSEPORT, so that the kernel gives this port to no other process.
		listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return listener, err
		}
		time.Sleep(bindInterval)
	}
}
