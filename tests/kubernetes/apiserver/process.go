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
	// It is ready within three seconds on a machine that is not busy.
	readyPatience = 3 * time.Minute
	// How long it may take to end after SIGTERM before it is killed. It would
	// wait for each open watch; tests want those cut.
	stopPatience = 2 * time.Second
	readyEvery   = 50 * time.Millisecond
)

// apiserver is the kube-apiserver's process. It keeps its port over restarts.
type apiserver struct {
	files *files
	etcd  string
	port  string
	// Flags beside its own.
	extra []string

	process *exec.Cmd
	// Held open: the process ends when this does.
	stdin io.Closer
	ended chan error
}

func (a *apiserver) url() string { return "https://127.0.0.1:" + a.port }

func (a *apiserver) flags() []string {
	return append([]string{
		"--etcd-servers=" + a.etcd,
		"--bind-address=127.0.0.1",
		// A machine may have no address but loopback, which is none to
		// advertise. Nobody asks for this one (TEST-NET-1).
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
		// Nobody here makes the default account that it would ask for.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true",
	}, a.extra...)
}

func (a *apiserver) runs() bool { return a.process != nil }

// start starts it and waits until it is ready and has its default namespace.
func (a *apiserver) start() error {
	if a.runs() {
		return fmt.Errorf("it runs already")
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
	said := bufio.NewReader(stdout)
	got, err := said.ReadString('\n')
	a.process, a.stdin, a.ended = process, stdin, make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, said)
		a.ended <- process.Wait()
	}()
	if err != nil {
		return fmt.Errorf("it ends at once, see %s", log.Name())
	}
	a.port = strings.TrimSpace(got)
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
	ctx, cancel := context.WithTimeout(context.Background(), readyPatience)
	defer cancel()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		for !a.answers(ctx, transport, path) {
			select {
			case err := <-a.ended:
				a.process = nil
				return fmt.Errorf("it ended before it was ready (%v), see %s", err, log)
			case <-ctx.Done():
				return fmt.Errorf("%s does not answer after %s, see %s", path, readyPatience, log)
			case <-time.After(readyEvery):
			}
		}
	}
	return nil
}

func (a *apiserver) answers(ctx context.Context, transport http.RoundTripper, path string) bool {
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

// stop ends it, if it runs, and waits until it is gone.
func (a *apiserver) stop() { a.end(stopPatience) }

// kill ends it, if it runs, as a power cut would.
func (a *apiserver) kill() { a.end(0) }

func (a *apiserver) end(patience time.Duration) {
	if !a.runs() {
		return
	}
	if patience > 0 {
		_ = a.process.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-a.ended:
	case <-time.After(patience):
		_ = a.process.Process.Kill()
		<-a.ended
	}
	_ = a.stdin.Close()
	a.process = nil
}
