package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// On an idle machine etcd is ready within a second.
const etcdTimeout = 2 * time.Minute

type etcdServer struct {
	*embed.Etcd
	files *files
	// The clients' address; a restore keeps it.
	address string
}

// anyPort lets the kernel choose the port, so that tests can run in parallel.
const anyPort = "127.0.0.1:0"

func startEtcd(files *files, address string) (*etcdServer, error) {
	config := etcdConfig(files)
	at := []url.URL{{Scheme: "http", Host: address}}
	config.ListenClientUrls, config.AdvertiseClientUrls = at, at
	server, err := embed.StartEtcd(config)
	// After a restore the previous etcd may still hold the port.
	for deadline := time.Now().Add(bindTimeout); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline); {
		time.Sleep(bindInterval)
		server, err = embed.StartEtcd(config)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot start etcd: %w", err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return nil, fmt.Errorf("etcd exited before it was ready: %w", err)
	case <-time.After(etcdTimeout):
		server.Close()
		return nil, fmt.Errorf("etcd is not ready within %s, see %s", etcdTimeout, files.path("etcd.log"))
	}
	return &etcdServer{server, files, server.Clients[0].Addr().String()}, nil
}

func etcdConfig(files *files) *embed.Config {
	config := embed.NewConfig()
	config.Dir = files.etcd()
	peers := []url.URL{{Scheme: "http", Host: anyPort}}
	config.ListenPeerUrls, config.AdvertisePeerUrls = peers, peers
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogOutputs = []string{files.path("etcd.log")}
	config.LogLevel = "warn"
	// The JSON gateway is not needed, and it connects to the configured port, which is 0.
	config.EnableGRPCGateway = false
	return config
}

func (e *etcdServer) url() string { return "http://" + e.address }

func (e *etcdServer) close() {
	e.Close()
	<-e.Server.StopNotify()
}

// compact deletes all revisions but the newest. A client that reads at an older one gets
// "the required revision has been compacted", unless the apiserver's watch cache has that revision.
func (e *etcdServer) compact() (int64, error) {
	revision := e.Server.KV().Rev()
	request := &etcdserverpb.CompactionRequest{Revision: revision, Physical: true}
	if _, err := e.Server.Compact(context.Background(), request); err != nil {
		return 0, err
	}
	return revision, nil
}

// snapshot writes the content of etcd to a file, in place of the previous snapshot.
func (e *etcdServer) snapshot() (revision int64, err error) {
	file, err := os.OpenFile(e.files.snapshot(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// The newest writes may not be in the database file yet.
	e.Server.KV().Commit()
	content := e.Server.Backend().Snapshot()
	reader, writer := io.Pipe()
	go func() {
		_, err := content.WriteTo(writer)
		writer.CloseWithError(errors.Join(err, content.Close()))
	}()
	_, err = io.Copy(file, reader)
	return e.Server.KV().Rev(), err
}

// restore stops this etcd and starts another one on the same port, with the content of the snapshot:
// the revision decreases. The apiserver must be stopped before.
func (e *etcdServer) restore() (*etcdServer, error) {
	e.close()
	if err := os.RemoveAll(e.files.etcd()); err != nil {
		return nil, err
	}
	config := etcdConfig(e.files)
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        e.files.snapshot(),
		Name:                config.Name,
		OutputDataDir:       e.files.etcd(),
		PeerURLs:            []string{config.AdvertisePeerUrls[0].String()},
		InitialCluster:      config.InitialCluster,
		InitialClusterToken: config.InitialClusterToken,
		// A copied snapshot, unlike a downloaded one, has no hash at its end.
		SkipHashCheck: true,
	})
	if err != nil {
		return nil, err
	}
	return startEtcd(e.files, e.address)
}
