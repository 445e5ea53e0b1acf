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

// files are the paths and secrets in the data directory. The first start creates the secrets; later starts
// read them, so that clients reconnect with the same credentials.
type files struct {
	directory  string
	kubeconfig string
	// The node that the node's token is for.
	node string
	// By user: "admin", "node", "nobody".
	token map[string]string
}

// users are the users that have a token.
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
		random, err := f.readOrCreate(user+".token", randomToken)
		if err != nil {
			return nil, err
		}
		f.token[user] = string(random)
	}
	if err := f.writeTokens(); err != nil {
		return nil, err
	}
	if _, err := f.readOrCreate(filepath.Base(f.accountKey()), newAccountKey); err != nil {
		return nil, err
	}
	return f, f.certify()
}

// writeTokens writes the token file, which the apiserver reads when it starts: token, name, UID, groups.
func (f *files) writeTokens() error {
	lines := fmt.Sprintf("%s,admin,admin,\"system:masters\"\n%s,system:node:%s,node,\"system:nodes\"\n%s,nobody,nobody\n",
		f.token["admin"], f.token["node"], f.node, f.token["nobody"])
	return os.WriteFile(f.tokens(), []byte(lines), 0o600)
}

// renewToken replaces a user's token. The apiserver accepts the new one after a restart.
func (f *files) renewToken(user string) error {
	if _, known := f.token[user]; !known {
		return fmt.Errorf("unknown user %q: must be one of %q", user, users)
	}
	if err := os.Remove(f.path(user + ".token")); err != nil {
		return err
	}
	random, err := f.readOrCreate(user+".token", randomToken)
	if err != nil {
		return err
	}
	f.token[user] = string(random)
	return f.writeTokens()
}

// readOrCreate reads a file; if the file does not exist, it creates it.
func (f *files) readOrCreate(name string, create func() ([]byte, error)) ([]byte, error) {
	if content, err := os.ReadFile(f.path(name)); !os.IsNotExist(err) {
		return content, err
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

// newAccountKey generates the key that signs the tokens of service accounts.
func newAccountKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return keyutil.MarshalPrivateKeyToPEM(key)
}

// certify creates a certificate for the loopback addresses and the CA that signs it, unless they exist.
func (f *files) certify() error {
	if _, err := os.Stat(f.ca()); err == nil {
		return nil
	}
	loopback := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	chain, key, err := cert.GenerateSelfSignedCertKey("localhost", loopback, nil)
	if err != nil {
		return err
	}
	// The chain consists of the certificate and the CA certificate.
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
