package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
)

// etcd is ready within a second; a machine under load may take its time.
const etcdPatience = 2 * time.Minute

type etcdServer struct {
	*embed.Etcd
	url string
}

func startEtcd(files *files) (*etcdServer, error) {
	// Port 0: the kernel picks one, so that tests can run beside each other.
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config := embed.NewConfig()
	config.Dir = files.path("etcd")
	config.ListenClientUrls, config.AdvertiseClientUrls = anyPort, anyPort
	config.ListenPeerUrls, config.AdvertisePeerUrls = anyPort, anyPort
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogOutputs = []string{files.path("etcd.log")}
	config.LogLevel = "warn"
	// Its JSON gateway, which nobody asks here, would call the port that is 0.
	config.EnableGRPCGateway = false
	server, err := embed.StartEtcd(config)
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
	return &etcdServer{server, "http://" + server.Clients[0].Addr().String()}, nil
}

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
