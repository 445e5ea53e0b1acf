package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// files is what lies in the data directory, and the secrets in it. They are
// made at the first start and kept: a restart is the same server.
type files struct {
	directory  string
	kubeconfig string
	// The node that the node's token is for.
	node string
	// By the name of who has it: "admin", "node", "nobody".
	token map[string]string
}

// users is whose tokens there are.
var users = []string{"admin", "node", "nobody"}

func (f *files) path(name string) string { return filepath.Join(f.directory, name) }
func (f *files) ca() string              { return f.path("ca.crt") }
func (f *files) cert() string            { return f.path("server.crt") }
func (f *files) key() string             { return f.path("server.key") }
func (f *files) accountKey() string      { return f.path("service-accounts.key") }
func (f *files) tokens() string          { return f.path("tokens.csv") }
func (f *files) etcd() string            { return f.path("etcd") }
func (f *files) snapshot() string        { return f.path("snapshot.db") }

func prepareFiles(directory, node string) (*files, error) {
	directory, err := filepath.Abs(directory)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, err
	}
	f := &files{directory: directory, node: node, token: map[string]string{}}
	f.kubeconfig = f.path("admin.kubeconfig")
	for _, user := range users {
		random, err := f.once(user+".token", randomToken)
		if err != nil {
			return nil, err
		}
		f.token[user] = string(random)
	}
	if err := f.writeTokens(); err != nil {
		return nil, err
	}
	if _, err := f.once(filepath.Base(f.accountKey()), accountKey); err != nil {
		return nil, err
	}
	return f, f.certify()
}

// writeTokens writes what the apiserver reads when it starts: token, name, UID, groups.
func (f *files) writeTokens() error {
	lines := fmt.Sprintf("%s,admin,admin,\"system:masters\"\n%s,system:node:%s,node,\"system:nodes\"\n%s,nobody,nobody\n",
		f.token["admin"], f.token["node"], f.node, f.token["nobody"])
	return os.WriteFile(f.tokens(), []byte(lines), 0o600)
}

// renew gives a user another token. The apiserver must be started again to see it.
func (f *files) renew(user string) error {
	if _, known := f.token[user]; !known {
		return fmt.Errorf("whose token: %q is none of %q", user, users)
	}
	if err := os.Remove(f.path(user + ".token")); err != nil {
		return err
	}
	random, err := f.once(user+".token", randomToken)
	if err != nil {
		return err
	}
	f.token[user] = string(random)
	return f.writeTokens()
}

// once reads a file, or makes it first if it is not there.
func (f *files) once(name string, create func() ([]byte, error)) ([]byte, error) {
	if kept, err := os.ReadFile(f.path(name)); !os.IsNotExist(err) {
		return kept, err
	}
	created, err := create()
	if err != nil {
		return nil, err
	}
	return created, os.WriteFile(f.path(name), created, 0o600)
}

func randomToken() ([]byte, error) {
	random := make([]byte, 16)
	_, err := rand.Read(random)
	return []byte(hex.EncodeToString(random)), err
}

// accountKey signs the tokens of service accounts.
func accountKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return keyutil.MarshalPrivateKeyToPEM(key)
}

// certify makes a certificate for loopback, and the authority that signed it.
func (f *files) certify() error {
	if _, err := os.Stat(f.ca()); err == nil {
		return nil
	}
	loopback := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	chain, key, err := cert.GenerateSelfSignedCertKey("localhost", loopback, nil)
	if err != nil {
		return err
	}
	// The chain is the certificate and then its authority.
	_, authority := pem.Decode(chain)
	for path, content := range map[string][]byte{f.cert(): chain, f.key(): key, f.ca(): bytes.TrimSpace(authority)} {
		if err := os.WriteFile(path, append(content, '\n'), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (f *files) writeKubeconfig(url string) error {
	authority, err := os.ReadFile(f.ca())
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: authority}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: f.token["admin"]}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "admin"}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, f.kubeconfig)
}
