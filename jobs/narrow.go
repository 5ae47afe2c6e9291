package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// leastTime is what a job needs to be worth starting, besides the share that
// publishing and delivering get.
const leastTime = 60 * time.Second

// narrow joins the owner's policy, the agent's settings and the task. Nothing
// outside has happened yet when it refuses.
func (j *job) narrow() (room, error) {
	j.enter(protocol.PhasePreparingRepository, "Checking the task")
	rules, err := j.rules()
	if err != nil {
		return room{}, err
	}
	j.facts.rules = rules
	funded, err := fundedPlan(j.run.Job.Policy.RequiredCommands, protocol.MaxRequiredCommands)
	if err != nil {
		return room{}, err
	}
	j.facts.plan = funded
	return j.budget(room{rules: rules, funded: funded})
}

// rules is the effective policy of the run: owner ∧ agent ∧ task.
func (j *job) rules() (*policies.Effective, error) {
	task := j.run.Job.Policy
	rules, err := policies.Narrow(j.cfg.Policy, j.settings(), policies.Task{
		AllowedPaths: task.AllowedPaths, ForbiddenPaths: task.ForbiddenPaths,
		NewDependencies: task.AllowNewDependencies, DatabaseMigrations: task.AllowDatabaseMigrations,
		Minutes: j.run.Job.Minutes, Repairs: j.run.Job.Repairs,
	})
	if err != nil {
		return nil, fail(protocol.CodeTaskInvalid, "narrowing the policy", err)
	}
	return rules, nil
}

func (j *job) settings() policies.Settings {
	agent := j.run.Configuration.Agent
	return policies.Settings{
		ProtectedPaths: agent.ProtectedPaths, NewDependencies: agent.AllowNewDependencies,
		DatabaseMigrations: agent.AllowDatabaseMigrations, Minutes: max(0, agent.MaximumExecutionMinutes),
	}
}

// fundedPlan parses at most so many funded commands; none is fine.
func fundedPlan(commands []string, most int) (policies.Plan, error) {
	if len(commands) == 0 {
		return policies.Plan{}, nil
	}
	parsed, err := policies.ParseValidations(commands, most)
	if err != nil {
		return policies.Plan{}, fail(protocol.CodeUnsafeValidationCommand, "reading the funded commands", err)
	}
	return policies.FundedPlan(commands, parsed), nil
}

// budget divides what is left of the lease.
func (j *job) budget(r room) (room, error) {
	r.budgets = r.rules.Budgets()
	r.ends = j.run.Started.Add(r.budgets.Total - r.budgets.Tail)
	if byLease := j.run.Deadline.Add(-r.budgets.Tail); byLease.Before(r.ends) {
		r.ends = byLease
	}
	if left := time.Until(r.ends); left < leastTime {
		return r, fail(protocol.CodeLeaseTooShort, "starting", fmt.Errorf("%s are left for the work", left.Round(time.Second)))
	}
	return r, nil
}

// open books the host's room for the job.
func (j *job) open(ctx context.Context, r room) (room, error) {
	defer j.step("open_job")()
	err := patience(ctx, j.log, r.ends.Add(-leastTime), passingStart, func() (err error) {
		j.room, err = j.cfg.Backend.OpenJob(ctx, sandbox.JobSpec{ID: jobID(j.run), Limits: r.rules.Policy.Limits})
		return err
	})
	if err != nil {
		j.room = nil
		return r, fmt.Errorf("opening the job: %w", err)
	}
	return r, nil
}

// jobID is the assignment's first UUID group and the lease's: enough to tell
// runs apart on one host, and no more than a label holds.
func jobID(run Run) sandbox.JobID {
	return sandbox.JobID(string(run.Job.Assignment)[:8] + "-" + string(run.Job.Lease.ID)[:8])
}
