// Package proof attacks real sandboxes of a backend and tells, control by
// control, what was seen. The attacks are veyra-init's mode "attack": a program
// of ours with the rights of a job. What it reports is a stranger's word, since
// whoever breaks out of a sandbox writes what he likes; so a report that is
// malformed, or in which an attempt is missing, proves nothing and counts as a
// control that is not enforced. Start reading at Run and at checks.
package proof

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// Config says what is attacked.
type Config struct {
	Backend sandbox.Backend
	// Isolation decides what is expected: gVisor's kernel answers otherwise
	// than the host's.
	Isolation sandbox.Isolation
	// Limits are the policy's. The sandboxes get smaller ones, which are
	// reached sooner.
	Limits policies.Limits
	// Image is the root; empty: none, so that a host without images can be
	// proven.
	Image images.Digest
	// HostWords are texts that must not be seen inside, such as directories of
	// the host.
	HostWords []string
	// Progress is told of each control before it is attacked; may be nil.
	Progress func(control string)
}

// Run carries out every attack. The error means that sandboxes could not be
// started or reached, so that nothing more can be said.
func Run(ctx context.Context, c Config) (seen []sandbox.Control, err error) {
	unchanged := HostUnchanged()
	limits := Small(c.Limits)
	job, err := c.Backend.OpenJob(ctx, sandbox.JobSpec{ID: "proof", Limits: limits})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, job.Close(context.WithoutCancel(ctx))) }()
	r := &round{config: c, job: job, limits: limits}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	for _, name := range Controls() {
		if c.Progress != nil {
			c.Progress(name)
		}
		control, err := r.attack(ctx, checks[name])
		if err != nil {
			return seen, fmt.Errorf("attacking %s: %w", name, err)
		}
		control.Name = name
		seen = append(seen, control)
	}
	return append(seen, unchanged()), nil
}

// Small are limits that an attack reaches soon, within the policy's.
func Small(l policies.Limits) policies.Limits {
	l.CPUs = 1
	l.MemoryBytes = min(l.MemoryBytes, 512<<20)
	l.PIDs = min(l.PIDs, 64)
	l.DiskBytes = min(l.DiskBytes, 64<<20)
	l.Inodes = min(l.Inodes, 4096)
	l.ShmBytes = min(l.ShmBytes, 4<<20)
	l.OpenFiles = min(l.OpenFiles, 4096)
	l.OutputReadBytes = min(l.OutputReadBytes, 8<<20)
	return l
}

// round is one Run. Attacks that may break a sandbox get one of their own, the
// others share one.
type round struct {
	config Config
	job    sandbox.Job
	limits policies.Limits
	shared sandbox.Sandbox // nil until it is needed, and after it broke
}

func (r *round) attack(ctx context.Context, c check) (sandbox.Control, error) {
	box, err := r.box(ctx)
	if err != nil {
		return sandbox.Control{}, err
	}
	control, broken, err := r.config.one(ctx, box, r.limits, c)
	if c.breaks || broken {
		err = errors.Join(err, r.close(ctx))
	}
	return control, err
}

func (r *round) box(ctx context.Context) (sandbox.Sandbox, error) {
	if r.shared != nil {
		return r.shared, nil
	}
	box, err := r.job.Create(ctx, sandbox.Spec{
		Image: r.config.Image, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: r.limits,
	})
	if err == nil { // not a typed nil
		r.shared = box
	}
	return box, err
}

func (r *round) close(ctx context.Context) error {
	if r.shared == nil {
		return nil
	}
	box := r.shared
	r.shared = nil
	return box.Close(context.WithoutCancel(ctx))
}

// One attacks one control in a sandbox that has the limits. What an attack
// broke stays broken: see sandbox.Exit.Gone.
func (c Config) One(ctx context.Context, box sandbox.Sandbox, limits policies.Limits, control string) (sandbox.Control, error) {
	what, known := checks[control]
	if !known {
		return sandbox.Control{}, fmt.Errorf("attacking %q: no such control", control)
	}
	seen, _, err := c.one(ctx, box, limits, what)
	seen.Name = control
	return seen, err
}

// view is what came of an attack, for a judge.
type view struct {
	gvisor bool
	limits policies.Limits
	words  []string
	tries  []attack.Try
	exit   sandbox.Exit
	// crashed: the sandbox ended, and no limit explains it.
	crashed bool
	// after is what the next command, alone in the sandbox, saw of others.
	after []attack.Try
}

func (c Config) one(ctx context.Context, box sandbox.Sandbox, limits policies.Limits, what check) (sandbox.Control, bool, error) {
	v := view{gvisor: c.Isolation == sandbox.IsolationGVisor, limits: limits, words: c.HostWords}
	var out bytes.Buffer
	cmd := what.command(limits)
	cmd.Stdout = &out
	var err error
	v.exit, err = box.Run(ctx, cmd)
	broken := v.exit.Gone
	switch kind := sandbox.KindOf(err); {
	case kind == sandbox.KindCrashed:
		v.crashed, broken = true, true
	case err != nil:
		return sandbox.Control{}, true, err
	}
	if !what.silent {
		if v.tries, err = attack.Parse(&out); err != nil {
			return sandbox.Control{Seen: err.Error(), Fix: what.fix}, broken, nil
		}
	}
	if what.follow && !broken {
		if v.after, err = alone(ctx, box); err != nil {
			return sandbox.Control{Seen: err.Error(), Fix: what.fix}, true, nil
		}
	}
	ok, seen := what.judge(v)
	control := sandbox.Control{Enforced: ok, Seen: seen}
	if !ok {
		control.Fix = what.fix
	}
	return control, broken, nil
}

// alone runs the next command, which has the sandbox to itself, and returns
// whom it sees. Its output must be its own.
func alone(ctx context.Context, box sandbox.Sandbox) ([]attack.Try, error) {
	var out bytes.Buffer
	exit, err := box.Run(ctx, sandbox.Command{Argv: argv(attack.Alone), Stdout: &out, Alone: true})
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("the next command ended with %d", exit.Code)
	}
	if err != nil {
		return nil, err
	}
	return attack.Parse(&out)
}

func argv(name string, args ...string) []string {
	return append([]string{sandbox.InitPath, attack.Mode, name}, args...)
}
