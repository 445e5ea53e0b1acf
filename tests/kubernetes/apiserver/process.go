package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// On an idle machine the kube-apiserver is ready within three seconds.
	readyTimeout = 3 * time.Minute
	// The time between SIGTERM and SIGKILL. The kube-apiserver waits for each open watch; tests need the watches
	// to be cut.
	stopTimeout   = 2 * time.Second
	readyInterval = 50 * time.Millisecond
)

// apiserver is the process of the kube-apiserver. A restart keeps the port.
type apiserver struct {
	files *files
	etcd  string
	port  string
	// Flags in addition to those that this program sets.
	extra []string

	process *exec.Cmd
	// The process exits when this is closed.
	stdin  io.Closer
	exited chan error
}

func (a *apiserver) url() string { return "https://127.0.0.1:" + a.port }

func (a *apiserver) flags() []string {
	return append([]string{
		"--etcd-servers=" + a.etcd,
		"--bind-address=127.0.0.1",
		// The loopback address cannot be advertised, and a machine may have no other. No client uses this one
		// (TEST-NET-1).
		"--advertise-address=192.0.2.1",
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + a.files.cert(),
		"--tls-private-key-file=" + a.files.key(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + a.files.accountKey(),
		"--service-account-signing-key-file=" + a.files.accountKey(),
		"--token-auth-file=" + a.files.tokens(),
		"--authorization-mode=Node,RBAC",
		"--service-cluster-ip-range=10.0.0.0/24",
		// It requires a default service account, which no controller creates here.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true",
	}, a.extra...)
}

func (a *apiserver) running() bool { return a.process != nil }

// start starts the process and waits until it is ready and has its default namespace.
func (a *apiserver) start() error {
	if a.running() {
		return fmt.Errorf("the kube-apiserver is already running")
	}
	port := a.port
	if port == "" {
		port = "0"
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(a.files.path("apiserver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	process := exec.Command(self, append([]string{serveCommand, "127.0.0.1:" + port}, a.flags()...)...)
	process.Stderr = log
	stdin, err := process.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	output := bufio.NewReader(stdout)
	line, err := output.ReadString('\n')
	a.process, a.stdin, a.exited = process, stdin, make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, output)
		a.exited <- process.Wait()
	}()
	if err != nil {
		return fmt.Errorf("the kube-apiserver exited before it listened, see %s", log.Name())
	}
	a.port = strings.TrimSpace(line)
	return a.waitUntilReady(log.Name())
}

func (a *apiserver) waitUntilReady(log string) error {
	authority, err := os.ReadFile(a.files.ca())
	if err != nil {
		return err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		for !a.responds(ctx, transport, path) {
			select {
			case err := <-a.exited:
				a.process = nil
				return fmt.Errorf("the kube-apiserver exited before it was ready (%v), see %s", err, log)
			case <-ctx.Done():
				return fmt.Errorf("no successful response from %s within %s, see %s", path, readyTimeout, log)
			case <-time.After(readyInterval):
			}
		}
	}
	return nil
}

// responds reports whether the response to a GET is 200 OK.
func (a *apiserver) responds(ctx context.Context, transport http.RoundTripper, path string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url()+path, nil)
	if err != nil {
		return false
	}
	request.Header.Set("Authorization", "Bearer "+a.files.token["admin"])
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode == http.StatusOK
}

// stop terminates the process, if it runs, and waits for its exit.
func (a *apiserver) stop() { a.end(stopTimeout) }

// kill kills the process, if it runs, as a power failure would.
func (a *apiserver) kill() { a.end(0) }

func (a *apiserver) end(timeout time.Duration) {
	if !a.running() {
		return
	}
	if timeout > 0 {
		_ = a.process.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-a.exited:
	case <-time.After(timeout):
		_ = a.process.Process.Kill()
		<-a.exited
	}
	_ = a.stdin.Close()
	a.process = nil
}
