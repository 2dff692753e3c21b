package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// localUserID is the user id of the local user. It owns no file and has no capability.
const localUserID = 65534

// localUserVariable has the orders of a process that attacks as a local user.
const localUserVariable = "MAPSYNC_ATTACK_LOCAL_USER"

// localUserName is the name that the local user gives itself as a node.
const localUserName = "lb-local"

// localUserOrders are what a local user finds out about the host: addresses, paths, processes and ids.
type localUserOrders struct {
	Dir      string        `json:"dir"` // with the files of the daemons and the pins of their maps
	Scratch  string        `json:"scratch"`
	Host     string        `json:"host"` // address of the local user's own ports
	Length   time.Duration `json:"length"`
	Nodes    []localTarget `json:"nodes"`
	MaxMapID uint32        `json:"max_map_id"`
}

// localTarget is a daemon.
type localTarget struct {
	Name   string `json:"name"`
	Addr   string `json:"addr"`
	Socket string `json:"socket"`
	PID    int    `json:"pid"`
}

// localUserReport is the result of a local user: how often it has tried each way, and what it was able to do.
type localUserReport struct {
	Tries map[string]int  `json:"tries"`
	Harm  map[string]bool `json:"harm"`
}

// localUserAttacks returns the attacks of a process on the host of the daemons.
func localUserAttacks() []attack {
	return []attack{
		{name: "local user: ports, socket, files and maps", by: byLocalUser, trace: grpcRefusedTrace, run: attackAsLocalUser},
	}
}

// attackAsLocalUser runs this program as a local user until the time has passed. The directories above the daemons' files are open
// to all users meanwhile, as /run and /etc are: the modes of the files and sockets themselves have to protect them.
func attackAsLocalUser(ctx context.Context, c *cluster) (err error) {
	closed, err := c.openDirectories()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed()) }()
	scratch, err := os.MkdirTemp("", "local-user")
	if err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	defer os.RemoveAll(scratch)
	if err := os.Chown(scratch, localUserID, localUserID); err != nil {
		return fmt.Errorf("give the directory to the local user: %w", err)
	}
	orders, err := c.localUserOrders(ctx, scratch)
	if err != nil {
		return err
	}
	r, err := runAsLocalUser(ctx, orders)
	if err != nil {
		return err
	}
	var ways []string
	for way := range r.Tries {
		ways = append(ways, fmt.Sprintf("%s %d", way, r.Tries[way]))
	}
	c.note("tries: " + sortedList(ways))
	var errs []error
	for harm := range r.Harm {
		errs = append(errs, fmt.Errorf("the local user was able to %s", harm))
	}
	return errors.Join(append(errs, c.checkNoLocalUser(ctx))...)
}

// openDirectories gives all users access to the directories of the cluster. closed restores their modes.
func (c *cluster) openDirectories() (closed func() error, err error) {
	dirs := []string{filepath.Dir(c.dir), c.dir}
	for _, n := range c.nodes {
		dirs = append(dirs, n.dir)
	}
	set := func(mode fs.FileMode) error {
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, os.Chmod(dir, mode))
		}
		return errors.Join(errs...)
	}
	return func() error { return set(0o700) }, set(0o755)
}

func (c *cluster) localUserOrders(ctx context.Context, scratch string) (*localUserOrders, error) {
	o := &localUserOrders{Dir: c.dir, Scratch: scratch, Host: c.address(attackers + 3), Length: time.Minute}
	if end, ok := ctx.Deadline(); ok {
		o.Length = time.Until(end) - 300*time.Millisecond
	}
	for _, n := range c.nodes {
		o.Nodes = append(o.Nodes, localTarget{n.name, n.addr, n.socket(), n.process.Load().Pid})
		info, err := n.m.Info()
		if err != nil {
			return nil, fmt.Errorf("get the id of the map of %s: %w", n.name, err)
		}
		id, _ := info.ID()
		o.MaxMapID = max(o.MaxMapID, uint32(id))
	}
	return o, nil
}

// runAsLocalUser runs this program as a local user with the orders, and returns its report.
func runAsLocalUser(ctx context.Context, o *localUserOrders) (r localUserReport, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return r, fmt.Errorf("encode the orders of the local user: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/proc/self/exe") // the user cannot reach the path of the program
	cmd.Dir, cmd.Env = "/", []string{localUserVariable + "=" + string(text), "TMPDIR=" + o.Scratch}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: localUserID, Gid: localUserID},
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("run as a local user: %w: %s", err, tail(errs.Bytes()))
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("decode the report of the local user: %w", err)
	}
	return r, nil
}

// checkNoLocalUser returns an error if a daemon has the local user as a node or an observer.
func (c *cluster) checkNoLocalUser(ctx context.Context) error {
	for _, n := range c.nodes {
		s, err := n.status(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		text, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode the status of %s: %w", n.name, err)
		}
		if strings.Contains(string(text), localUserName) {
			return fmt.Errorf("the status of %s has the local user: %s", n.name, text)
		}
	}
	return nil
}
