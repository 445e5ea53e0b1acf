package main

import (
	"fmt"
	"strings"
)

// cluster is the state that the commands change.
type cluster struct {
	files  *files
	etcd   *etcdServer
	server *apiserver
}

// done is the response to a command.
type done struct {
	Done string `json:"done"`
	// Of "compact": the revision up to which the history is deleted. Of "snapshot"
	// and "restore": the newest revision.
	Revision int64 `json:"revision,omitempty"`
	// Of "token": the new token.
	Token string `json:"token,omitempty"`
}

// run executes one line of stdin: a command and its arguments.
func (c *cluster) run(line string) (response done, err error) {
	response.Done = line
	words := strings.Fields(line)
	if len(words) == 0 {
		return response, fmt.Errorf("an empty line: a command is required")
	}
	command, arguments := words[0], words[1:]
	switch {
	case command == "start":
		err = c.start(arguments)
	case command == "restart":
		c.server.stop()
		err = c.start(arguments)
	case command == "token" && len(arguments) == 1:
		response.Token, err = c.renewToken(arguments[0])
	case len(arguments) > 0:
		err = fmt.Errorf("unexpected arguments %q", arguments)
	case command == "stop":
		c.server.stop()
	case command == "kill":
		c.server.kill()
	case command == "compact":
		response.Revision, err = c.etcd.compact()
	case command == "snapshot":
		response.Revision, err = c.etcd.snapshot()
	case command == "restore":
		response.Revision, err = c.restore()
	default:
		err = fmt.Errorf("unknown command, or an argument is missing")
	}
	return response, err
}

// start starts the apiserver with these additional flags; without flags, with the previous ones.
func (c *cluster) start(flags []string) error {
	if len(flags) > 0 {
		c.server.extra = flags
	}
	return c.server.start()
}

// renewToken replaces a user's token; the apiserver rejects the previous one.
func (c *cluster) renewToken(user string) (string, error) {
	if err := c.files.renewToken(user); err != nil {
		return "", err
	}
	if err := c.files.writeKubeconfig(c.server.url()); err != nil {
		return "", err
	}
	return c.files.token[user], c.whileStopped(func() error { return nil })
}

// restore resets etcd to the last snapshot.
func (c *cluster) restore() (revision int64, err error) {
	err = c.whileStopped(func() error {
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

// whileStopped stops the apiserver, does the work, and starts the apiserver again if it was running.
func (c *cluster) whileStopped(work func() error) error {
	ran := c.server.running()
	c.server.stop()
	if err := work(); err != nil || !ran {
		return err
	}
	return c.server.start()
}
