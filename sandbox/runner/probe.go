package runner

import (
	"context"
	"errors"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// probeLimits are small: a probe must pass on any host that can do work at all.
func probeLimits(p policies.Policy) policies.Limits {
	l := p.Limits
	l.CPUs = 1
	l.MemoryBytes = min(l.MemoryBytes, 256<<20)
	l.DiskBytes = min(l.DiskBytes, 64<<20)
	l.Inodes = min(l.Inodes, 4096)
	l.ShmBytes = min(l.ShmBytes, 1<<20)
	return l
}

// Facts names the backend and its software without starting a sandbox.
func (c *Client) Facts(ctx context.Context) (sandbox.Report, error) {
	r, err := c.call(ctx, request{Op: opFacts})
	if err != nil {
		return sandbox.Report{}, err
	}
	if r.Report == nil {
		return sandbox.Report{}, &sandbox.Error{Kind: sandbox.KindStart, Op: "probing: no answer"}
	}
	c.waive(r.Report.Controls)
	return *r.Report, nil
}

// waive marks what the host lacks and the policy goes without.
func (c *Client) waive(controls []sandbox.Control) {
	for i, k := range controls {
		controls[i].Waived = !k.Enforced && k.For != "" && c.policy.Tolerates(k.For)
	}
}

// Probe really starts a sandbox, and runs a command in it that can only end
// well when all of it works.
func (c *Client) Probe(ctx context.Context) (sandbox.Report, error) {
	report, err := c.Facts(ctx)
	if err != nil {
		return report, err
	}
	seen, err := c.probe(ctx)
	report.Controls = append(report.Controls, seen...)
	return report, err
}

func (c *Client) probe(ctx context.Context) (seen []sandbox.Control, err error) {
	limits := probeLimits(c.policy)
	c.mu.Lock()
	c.probes++
	id := sandbox.JobID(fmt.Sprintf("probe-%d", c.probes))
	c.mu.Unlock()
	job, err := c.openJob(ctx, sandbox.JobSpec{ID: id, Limits: limits})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, job.Close(context.WithoutCancel(ctx))) }()
	spec := sandbox.Spec{Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: limits}
	box, ready, applied, err := job.create(ctx, spec)
	if err != nil {
		return nil, err
	}
	for _, k := range controls(spec, ready, applied) {
		seen = append(seen, sandbox.Control{Name: k.name, Enforced: k.ok, Waived: k.waived(c.policy, applied), Seen: k.seen})
	}
	return seen, tryCommand(ctx, box)
}

// tryCommand expects init's usage status: a command that started, spoke and
// ended inside.
func tryCommand(ctx context.Context, box *clientSandbox) error {
	exit, err := box.Run(ctx, sandbox.Command{Argv: []string{sandbox.InitPath, "probe"}})
	if err != nil {
		return err
	}
	if exit.Code == 126 || exit.Code == 127 || exit.Gone {
		return &sandbox.Error{Kind: sandbox.KindStart, Op: fmt.Sprintf("probing: a command ended with %d", exit.Code)}
	}
	return nil
}
