package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

// Limits that no attack may push a daemon beyond.
const (
	memoryLimit = 150 << 20 // above idle
	logLimit    = 1 << 20
	// descriptorSlack is how many more descriptors than before a daemon may keep.
	descriptorSlack = 32
	// recovery is the time after an attack in which all must be as before.
	recovery = 20 * time.Second
)

// adversary is who attacks, by the credentials that they have.
type adversary string

const (
	byOutsider adversary = "no credentials"
	byGossip   adversary = "gossip key only"
	byStranger adversary = "certificate, not a member"
	byMember   adversary = "member with bad intent"
)

// attack is one way to harm a cluster.
type attack struct {
	name string
	by   adversary
	// trace matches the name and labels of a metric that must have grown on a daemon, or a
	// log line that must have appeared. Empty: the attack leaves nothing that an operator
	// should see.
	trace string
	// remedy is what an operator does after the attack, once it was seen to have done no harm to
	// what there was. May be nil.
	remedy func(context.Context, *cluster) error
	// fresh asks for new daemons: gossip remembers the highest incarnation of a name, and log
	// lines are limited over time.
	fresh bool
	// restarts is the number of the daemon, from 1, that the attack restarts; 0 for none.
	restarts int
	// fixed is the time that the attack takes where it differs from the length of the others.
	fixed time.Duration
	// run attacks until it is done or the context ends. Its error is harm that only the
	// attacker sees, or that the attack could not be made.
	run func(context.Context, *cluster) error
}

// before is the state of a daemon when an attack begins.
type before struct {
	sample  sample
	metrics map[string]float64
}

// perform makes an attack, for at most the given time, and returns what came of it. After
// one that did harm the daemons are started anew.
func (c *cluster) perform(ctx context.Context, a *attack, length time.Duration) result {
	r := result{Name: a.name, By: string(a.by)}
	if a.fresh {
		if err := c.renew(ctx); err != nil {
			r.Harm = err.Error()
			return r
		}
	}
	begun := time.Now()
	was, err := c.before()
	if err == nil {
		err = errors.Join(c.attack(ctx, a, length, &r), c.after(ctx, a, was, &r))
	}
	r.Seconds = time.Since(begun).Seconds()
	if err != nil && ctx.Err() == nil {
		r.Harm = err.Error()
		if err := c.renew(ctx); err != nil {
			r.Harm += "\n" + err.Error()
		}
	}
	return r
}

func (c *cluster) before() (map[*node]before, error) {
	all := make(map[*node]before)
	for _, n := range c.nodes {
		s, err := n.sample()
		if err != nil {
			return nil, err
		}
		m, err := n.metrics()
		if err != nil {
			return nil, err
		}
		all[n] = before{s, m}
	}
	return all, nil
}

// attack runs the attack and watches the daemons meanwhile.
func (c *cluster) attack(ctx context.Context, a *attack, length time.Duration, r *result) error {
	var spared *node
	if a.restarts > 0 {
		spared = c.nodes[a.restarts-1]
	}
	watching, stop := context.WithCancel(ctx)
	w, wait := c.follow(watching, spared)
	if a.fixed > 0 {
		length = a.fixed
	}
	limited, cancel := context.WithTimeout(ctx, length)
	err := a.run(limited, c)
	cancel()
	sleep(ctx, 600*time.Millisecond) // one more round of questions
	stop()
	wait()
	r.MemoryMiB, r.Descriptors, r.AnswerSeconds = float64(w.memory)/(1<<20), w.open, w.slowest.Seconds()
	errs := []error{err, w.joined()}
	if w.memory > memoryLimit {
		errs = append(errs, fmt.Errorf("memory of a daemon grew by %.0f MiB", r.MemoryMiB))
	}
	if w.slowest > answerLimit {
		errs = append(errs, fmt.Errorf("a daemon took %s to answer", w.slowest.Round(time.Millisecond)))
	}
	return errors.Join(errs...)
}

// after returns an error unless all is as it was before the attack, honest changes still
// replicate, and the attack left a trace.
func (c *cluster) after(ctx context.Context, a *attack, was map[*node]before, r *result) error {
	for _, n := range c.nodes {
		if n.gone() {
			text, _ := os.ReadFile(n.logFile)
			return fmt.Errorf("%s ended: %s", n.name, tail(text))
		}
	}
	if err := c.settled(ctx, recovery); err != nil {
		return fmt.Errorf("after the attack: %w", err)
	}
	if a.remedy != nil {
		if err := a.remedy(ctx, c); err != nil {
			return fmt.Errorf("remedy: %w", err)
		}
	}
	errs := []error{c.change(ctx)}
	for _, n := range c.nodes {
		if a.restarts == n.number {
			b := was[n]
			b.sample.descriptors, b.metrics = n.idle.descriptors, nil
			was[n] = b
		}
		errs = append(errs, n.recovered(ctx, was[n].sample, r))
	}
	return errors.Join(append(errs, c.traced(a, was, r))...)
}

// change has every load balancer change an entry, begin one and end one, and waits until
// all maps have it.
func (c *cluster) change(ctx context.Context) error {
	for _, n := range c.nodes {
		flow := uint32(n.version)
		if err := errors.Join(n.write(0), n.write(1<<16+flow), n.write(1<<17), n.remove(1<<17)); err != nil {
			return err
		}
	}
	if err := c.settled(ctx, recovery); err != nil {
		return fmt.Errorf("a change after the attack: %w", err)
	}
	return nil
}

// recovered returns an error unless the daemon has given back its descriptors, wrote
// little to its log, and answers the command.
func (n *node) recovered(ctx context.Context, was sample, r *result) error {
	err := eventually(ctx, recovery, func() error {
		s, err := n.sample()
		if err == nil && s.descriptors > was.descriptors+descriptorSlack {
			err = fmt.Errorf("%s has %d descriptors, %d before", n.name, s.descriptors, was.descriptors)
		}
		return err
	})
	s, sampleErr := n.sample()
	grown := s.log - was.log
	r.LogKiB = max(r.LogKiB, float64(grown)/1024)
	errs := []error{err, sampleErr}
	if grown > logLimit {
		errs = append(errs, fmt.Errorf("log of %s grew by %d KiB", n.name, grown/1024))
	}
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if out, err := exec.CommandContext(limited, n.c.syncd, "status", "--control-socket", n.socket()).CombinedOutput(); err != nil {
		errs = append(errs, fmt.Errorf("syncd status of %s: %w: %s", n.name, err, out))
	}
	return errors.Join(errs...)
}

// traced returns an error unless a metric or a log line shows the attack.
func (c *cluster) traced(a *attack, was map[*node]before, r *result) error {
	if a.trace == "" {
		return nil
	}
	trace := regexp.MustCompile(a.trace)
	for _, n := range c.nodes {
		now, err := n.metrics()
		if err != nil {
			return err
		}
		for name, v := range now {
			if v > was[n].metrics[name] && trace.MatchString(name) {
				r.Trace = name
				return nil
			}
		}
		text, err := os.ReadFile(n.logFile)
		if err != nil {
			return fmt.Errorf("read log of %s: %w", n.name, err)
		}
		if line := trace.Find(text[min(was[n].sample.log, int64(len(text))):]); line != nil {
			r.Trace = string(line)
			return nil
		}
	}
	return fmt.Errorf("no metric and no log line matches %q", a.trace)
}

// renew replaces all daemons and maps, after an attack that did harm.
func (c *cluster) renew(ctx context.Context) error {
	if err := c.close(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(c.dir), "again")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	next, err := newCluster(ctx, c.syncd, dir)
	if err != nil {
		c.nodes = nil
		return fmt.Errorf("start the cluster anew: %w", err)
	}
	*c = *next
	for _, n := range c.nodes {
		n.c = c
	}
	return nil
}
