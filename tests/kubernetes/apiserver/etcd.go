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

// etcd is ready within a second; a machine under load may take its time.
const etcdPatience = 2 * time.Minute

type etcdServer struct {
	*embed.Etcd
	files *files
	// Where clients reach it, also after a restore.
	address string
}

// anyPort has the kernel pick one, so that tests can run beside each other.
const anyPort = "127.0.0.1:0"

func startEtcd(files *files, address string) (*etcdServer, error) {
	config := etcdConfig(files)
	at := []url.URL{{Scheme: "http", Host: address}}
	config.ListenClientUrls, config.AdvertiseClientUrls = at, at
	server, err := embed.StartEtcd(config)
	// The port may be held for a moment by the one before.
	for deadline := time.Now().Add(bindPatience); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline); {
		time.Sleep(bindEvery)
		server, err = embed.StartEtcd(config)
	}
	if err != nil {
		return nil, fmt.Errorf("etcd does not start: %w", err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return nil, fmt.Errorf("etcd ends at once: %w", err)
	case <-time.After(etcdPatience):
		server.Close()
		return nil, fmt.Errorf("etcd is not ready after %s, see %s", etcdPatience, files.path("etcd.log"))
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
	// Its JSON gateway, which nobody asks here, would call the port that is 0.
	config.EnableGRPCGateway = false
	return config
}

func (e *etcdServer) url() string { return "http://" + e.address }

func (e *etcdServer) close() {
	e.Close()
	<-e.Server.StopNotify()
}

// compact forgets all revisions but the newest. Whoever reads at an older one
// gets "the required revision has been compacted", as soon as the apiserver's
// own cache does not answer for it.
func (e *etcdServer) compact() (int64, error) {
	revision := e.Server.KV().Rev()
	request := &etcdserverpb.CompactionRequest{Revision: revision, Physical: true}
	if _, err := e.Server.Compact(context.Background(), request); err != nil {
		return 0, err
	}
	return revision, nil
}

// snapshot keeps all that there is now, in place of what was kept before.
func (e *etcdServer) snapshot() (revision int64, err error) {
	file, err := os.OpenFile(e.files.snapshot(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// Without it the newest writes might not be in the database's file yet.
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

// restore ends it and starts another one on the same port, with what was kept
// by snapshot and nothing that came later: the revision goes backwards. Whoever
// speaks to it must have ended before.
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
		// It has been copied, not fetched: there is no hash at its end.
		SkipHashCheck: true,
	})
	if err != nil {
		return nil, err
	}
	return startEtcd(e.files, e.address)
}
