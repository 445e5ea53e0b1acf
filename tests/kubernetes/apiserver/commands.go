package main

import (
	"fmt"
	"strings"
)

// cluster is what the commands are about.
type cluster struct {
	files  *files
	etcd   *etcdServer
	server *apiserver
}

// done is the answer to a command.
type done struct {
	Done string `json:"done"`
	// With "compact": the revision up to which history is gone. With "snapshot"
	// and "restore": the newest that there is.
	Revision int64 `json:"revision,omitempty"`
	// With "token": the new one.
	Token string `json:"token,omitempty"`
}

// run does what a line asks for: a command, and perhaps words behind it.
func (c *cluster) run(line string) (answer done, err error) {
	answer.Done = line
	words := strings.Fields(line)
	if len(words) == 0 {
		return answer, fmt.Errorf("a line without a command")
	}
	command, words := words[0], words[1:]
	switch {
	case command == "start":
		err = c.start(words)
	case command == "restart":
		c.server.stop()
		err = c.start(words)
	case command == "token" && len(words) == 1:
		answer.Token, err = c.renew(words[0])
	case len(words) > 0:
		err = fmt.Errorf("it takes other words behind it")
	case command == "stop":
		c.server.stop()
	case command == "kill":
		c.server.kill()
	case command == "compact":
		answer.Revision, err = c.etcd.compact()
	case command == "snapshot":
		answer.Revision, err = c.etcd.snapshot()
	case command == "restore":
		answer.Revision, err = c.restore()
	default:
		err = fmt.Errorf("no such command")
	}
	return answer, err
}

// start starts the apiserver with these flags beside its own, or with those from
// before if there are none.
func (c *cluster) start(flags []string) error {
	if len(flags) > 0 {
		c.server.extra = flags
	}
	return c.server.start()
}

// renew gives a user another token; the one before is worth nothing any more.
func (c *cluster) renew(user string) (string, error) {
	if err := c.files.renew(user); err != nil {
		return "", err
	}
	if err := c.files.writeKubeconfig(c.server.url()); err != nil {
		return "", err
	}
	return c.files.token[user], c.interrupted(func() error { return nil })
}

// restore puts etcd back to what it was at the last snapshot.
func (c *cluster) restore() (revision int64, err error) {
	err = c.interrupted(func() error {
		restored, err := c.etcd.restore()
		if err != nil {
			return err
		}
		c.etcd = restored
		revision = restored.Server.KV().Rev()
		return nil
	})
	return revision, err
}

// interrupted does something while the apiserver does not run, and starts it
// again if it did.
func (c *cluster) interrupted(work func() error) error {
	ran := c.server.runs()
	c.server.stop()
	if err := work(); err != nil || !ran {
		return err
	}
	return c.server.start()
}
