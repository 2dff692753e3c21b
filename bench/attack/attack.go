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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits that a daemon must keep under every attack.
const (
	memoryLimit = 150 << 20 // bytes of resident memory above idle
	logLimit    = 1 << 20
	// descriptorSlack is how many more descriptors a daemon may hold after an attack than before
	// it.
	descriptorSlack = 32
	// recovery is the time after a start or an attack in which the daemons must return to the state before it.
	recovery = time.Minute
	// exitProblems is the exit code of syncd status if the node has problems.
	exitProblems = 1
)

// adversary names the attacker by the credentials that the attacker has.
type adversary string

const (
	byOutsider  adversary = "no credentials"
	byLocalUser adversary = "local user, uid 65534"
	byOperator  adversary = "root on the same host"
	byGossip    adversary = "gossip key only"
	byNonMember adversary = "certificate, not a member"
	byMember    adversary = "member with bad intent"
)

// attack is one way to harm a cluster.
type attack struct {
	name string
	by   adversary
	// trace is a regular expression. It matches the name and labels of a metric that must have
	// grown on a daemon, or a log line that must have appeared. Empty: the attack leaves no trace
	// that an operator needs to see.
	trace string
	// remedy is the action of the operator after an attack that did no harm to the existing
	// entries. May be nil.
	remedy func(context.Context, *cluster) error
	// newDaemons asks for new daemons before the attack, for two reasons: gossip stores the highest
	// incarnation of a name, and the daemons limit log lines over time.
	newDaemons bool
	// restored stops all daemons cleanly before the attack and starts them again.
	restored bool
	// restartedNode is the number of the daemon, from 1, that the attack restarts; 0 for none.
	restartedNode int
	// length is the time that the attack takes, where it differs from the default length; 0 for the
	// default.
	length time.Duration
	// run attacks until the attack is complete or the context ends. It returns an error for harm
	// that only the attacker detects, and if the attack could not be made.
	run func(context.Context, *cluster) error
}

// baseline is the state of a daemon at the start of an attack.
type baseline struct {
	sample  sample
	metrics map[string]float64
}

// perform makes an attack, for at most the given time, and returns its result. After an attack that
// did harm it replaces the daemons.
func (c *cluster) perform(ctx context.Context, a *attack, length time.Duration) result {
	r := result{Name: a.name, By: string(a.by)}
	if a.newDaemons {
		if err := c.replaceDaemons(ctx); err != nil {
			r.Harm = err.Error()
			return r
		}
	}
	if a.restored {
		if err := c.restartAll(ctx); err != nil {
			r.Harm = err.Error()
			return r
		}
	}
	begun := time.Now()
	was, err := c.takeBaselines()
	if err == nil {
		err = errors.Join(c.attack(ctx, a, length, was, &r), c.checkAfter(ctx, a, was, &r))
	}
	r.Seconds, r.Note = time.Since(begun).Seconds(), c.takeNotes()
	if err != nil && ctx.Err() == nil {
		r.Harm = err.Error()
		if err := c.replaceDaemons(ctx); err != nil {
			r.Harm += "\n" + err.Error()
		}
	}
	return r
}

func (c *cluster) takeBaselines() (map[*node]baseline, error) {
	all := make(map[*node]baseline)
	for _, n := range c.nodes {
		s, err := n.sample()
		if err != nil {
			return nil, err
		}
		m, err := n.metrics()
		if err != nil {
			return nil, err
		}
		all[n] = baseline{s, m}
	}
	return all, nil
}

// attack runs the attack and monitors the daemons meanwhile.
func (c *cluster) attack(ctx context.Context, a *attack, length time.Duration, was map[*node]baseline, r *result) error {
	var restarting *node
	if a.restartedNode > 0 {
		restarting = c.nodes[a.restartedNode-1]
	}
	watching, stop := context.WithCancel(ctx)
	w, wait := c.monitorAll(watching, restarting)
	if a.length > 0 {
		length = a.length
	}
	err := c.run(ctx, a, length, was)
	sleep(ctx, 600*time.Millisecond) // one more round of health checks
	stop()
	wait()
	r.WrongEntries = w.wrong
	r.MemoryMiB, r.Descriptors, r.AnswerSeconds = float64(w.memory)/(1<<20), w.descriptors, w.slowestAnswer.Seconds()
	errs := []error{err, w.err()}
	if w.memory > memoryLimit {
		errs = append(errs, fmt.Errorf("memory of a daemon grew by %.0f MiB", r.MemoryMiB))
	}
	if w.wrong > 0 {
		errs = append(errs, fmt.Errorf("%d entries of a map were wrong at a reading", w.wrong))
	}
	if w.slowestAnswer > answerLimit {
		errs = append(errs, fmt.Errorf("a daemon took %s to answer", w.slowestAnswer.Round(time.Millisecond)))
	}
	return errors.Join(errs...)
}

// maxTries is the number of times that an attack is made while the daemons have read too little of
// it.
const maxTries = 4

// run makes the attack. On a busy machine, and after attacks of the same member, daemons subscribe
// late and read slowly: while no daemon has subscribed to the attacker, or the attack has left no
// trace or has ended before its first step was done, run makes it again, for twice as long.
func (c *cluster) run(ctx context.Context, a *attack, length time.Duration, was map[*node]baseline) (err error) {
	for range maxTries {
		c.takeNotes()
		limited, cancel := context.WithTimeout(ctx, length)
		err = a.run(limited, c)
		tooShort := limited.Err() != nil && isDeadline(err)
		cancel()
		if err == nil && a.restartedNode == 0 { // metrics start again with the node
			err = eventually(ctx, time.Second, func() error { return c.checkTrace(a, was, &result{}) })
		}
		if !tooShort && !errors.Is(err, errNoSubscriber) && !errors.Is(err, errNoTrace) {
			return err
		}
		length *= 2
	}
	if errors.Is(err, errNoTrace) {
		return nil // the checks after the attack report it
	}
	return err
}

// isDeadline reports whether err is the end of a context's time, here or in a call.
func isDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}

// checkAfter returns an error unless the cluster is in the state before the attack, regular changes
// still replicate, and the attack left a trace.
func (c *cluster) checkAfter(ctx context.Context, a *attack, was map[*node]baseline, r *result) error {
	for _, n := range c.nodes {
		n.endAttack()
		if n.hasExited() {
			text, _ := os.ReadFile(n.logFile)
			return fmt.Errorf("%s ended: %s", n.name, tail(text))
		}
	}
	if err := c.awaitConverged(ctx); err != nil {
		return fmt.Errorf("after the attack: %w", err)
	}
	if a.remedy != nil {
		if err := a.remedy(ctx, c); err != nil {
			return fmt.Errorf("remedy: %w", err)
		}
	}
	errs := []error{c.checkReplication(ctx)}
	for _, n := range c.nodes {
		if a.restartedNode == n.number {
			b := was[n]
			b.sample.descriptors, b.metrics = n.idle.descriptors, nil
			was[n] = b
		}
		errs = append(errs, n.checkRecovered(ctx, was[n].sample, r))
	}
	return errors.Join(append(errs, c.checkTrace(a, was, r))...)
}

// checkReplication lets every load balancer update one entry, add one and delete one. It waits
// until all maps hold the result.
func (c *cluster) checkReplication(ctx context.Context) error {
	for _, n := range c.nodes {
		flow := uint32(n.version)
		if err := errors.Join(n.write(0), n.write(1<<16+flow), n.write(1<<17), n.remove(1<<17)); err != nil {
			return err
		}
	}
	if err := c.awaitConverged(ctx); err != nil {
		return fmt.Errorf("a change after the attack: %w", err)
	}
	return nil
}

// checkRecovered returns an error unless the daemon has released its descriptors, has written
// little to its log, and answers requests on its control socket.
func (n *node) checkRecovered(ctx context.Context, was sample, r *result) error {
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
	// The attack itself may be a problem that the daemon states.
	out, err := exec.CommandContext(limited, n.c.syncd, "status", "--control-socket", n.socket()).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != exitProblems) {
		errs = append(errs, fmt.Errorf("syncd status of %s: %w: %s", n.name, err, out))
	}
	return errors.Join(errs...)
}

// errNoTrace is returned if neither a metric nor a log line shows the attack.
var errNoTrace = errors.New("no trace of the attack")

// checkTrace returns errNoTrace unless a metric or a log line shows the attack.
func (c *cluster) checkTrace(a *attack, was map[*node]baseline, r *result) error {
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
	return fmt.Errorf("%w: no metric and no log line matches %q", errNoTrace, a.trace)
}

// replaceDaemons replaces all daemons and maps after an attack that did harm.
func (c *cluster) replaceDaemons(ctx context.Context) error {
	if err := c.close(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(c.dir), "again")
	if err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	next, err := newCluster(ctx, c.syncd, dir)
	if err != nil {
		c.nodes = nil
		return fmt.Errorf("start the cluster anew: %w", err)
	}
	c.dir, c.ca, c.nodes, c.base = next.dir, next.ca, next.nodes, next.base
	for _, n := range c.nodes {
		n.c = c
	}
	return nil
}
