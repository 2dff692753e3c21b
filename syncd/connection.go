package main

import (
	"errors"
	"fmt"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// defaultAnswerTimeout is the time for which a daemon may send nothing, unless a flag sets it.
const defaultAnswerTimeout = 5 * time.Second

// connection has the flags of a command that sends requests to the daemon.
type connection struct {
	socket  string
	timeout time.Duration // for which the daemon may send nothing
}

// bind adds the flags to a command, and the exit code of a daemon that does not answer to its help. The limit is --timeout.
// A command whose own --timeout limits the time that it waits has it as --answer-timeout.
func (c *connection) bind(cmd *cobra.Command) {
	cmd.Long += fmt.Sprintf("\n3: the daemon does not answer within --%s.", c.bindFlags(cmd))
}

// bindFlags adds the flags to a command, and returns the name of the limit.
func (c *connection) bindFlags(cmd *cobra.Command) (name string) {
	name = "timeout"
	if cmd.Flags().Lookup(name) != nil {
		name = "answer-timeout"
	}
	cmd.Flags().StringVar(&c.socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	c.timeout = defaultAnswerTimeout
	cmd.Flags().Var((*positiveDuration)(&c.timeout), name, "maximum time for which the daemon sends nothing, before and within its answer")
	return name
}

func (c *connection) client() *daemon.Client {
	client := daemon.NewClient(c.socket)
	client.Timeout = c.timeout
	return client
}

// positiveDuration is the value of a flag: a duration above 0.
type positiveDuration time.Duration

func (d *positiveDuration) String() string { return time.Duration(*d).String() }

// Type returns the name of the type in the help.
func (d *positiveDuration) Type() string { return "duration" }

func (d *positiveDuration) Set(text string) error {
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	if parsed <= 0 {
		return errors.New("give a duration above 0")
	}
	*d = positiveDuration(parsed)
	return nil
}
