package policies

import (
	"errors"
	"fmt"
	"slices"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// ErrTask is wrapped by every error about a number of a task that no policy can
// make sense of.
var ErrTask = errors.New("task is outside the limits")

// Task is what a funded job asks for (protocol section 6, "policy").
type Task struct {
	AllowedPaths       []string
	ForbiddenPaths     []string
	ProtectedPaths     []string
	NewDependencies    bool
	DatabaseMigrations bool
	Minutes            int
	Repairs            int
}

// Settings are what the owner's agent allows at the control plane (protocol
// section 4, configuration). They narrow a task as the policy does.
type Settings struct {
	ProtectedPaths     []string
	NewDependencies    bool
	DatabaseMigrations bool
	Minutes            int // 0 = the configuration names none
}

// Effective is what holds for one job: owner's policy ∧ agent's settings ∧
// task, rule by rule. It never allows what one of the three doesn't. It is made
// by Narrow only and does not change afterwards.
type Effective struct {
	Policy Policy

	// Allowed holds one list for each side that restricts paths; a changed path
	// must be covered by a rule of every list.
	Allowed        [][]string
	Forbidden      []string
	Protected      []string
	ProtectedNames []string

	NewDependencies    bool
	DatabaseMigrations bool
	Minutes            int
	Repairs            int

	rules compiledRules
}

type compiledRules struct {
	allowed        [][]AllowRule
	forbidden      []ForbidRule
	protected      []ForbidRule
	protectedNames []nameRule
	known          knownNames
}

// Narrow returns what holds for a job. Numbers above the owner's are clamped,
// numbers that mean nothing wrap ErrTask, and a forbidding rule that can't be
// used wraps ErrRule; in both cases the job must not start.
func Narrow(p Policy, s Settings, t Task) (*Effective, error) {
	if t.Minutes < 1 || s.Minutes < 0 || t.Repairs < 0 {
		return nil, fmt.Errorf("task of %d minutes and %d repairs: %w", t.Minutes, t.Repairs, ErrTask)
	}
	e := &Effective{
		Policy:             p,
		Forbidden:          union(p.Paths.Forbidden, t.ForbiddenPaths),
		Protected:          union(p.Paths.Protected, s.ProtectedPaths, t.ProtectedPaths),
		ProtectedNames:     union(p.Paths.ProtectedNames),
		NewDependencies:    p.Jobs.NewDependencies && s.NewDependencies && t.NewDependencies,
		DatabaseMigrations: p.Jobs.DatabaseMigrations && s.DatabaseMigrations && t.DatabaseMigrations,
		Minutes:            min(t.Minutes, capped(p.Jobs.Minutes, s.Minutes), protocol.MaxMinutes),
		Repairs:            min(t.Repairs, p.Jobs.Repairs),
	}
	for _, list := range [][]string{p.Paths.Allowed, t.AllowedPaths} {
		if len(list) > 0 {
			e.Allowed = append(e.Allowed, union(list))
		}
	}
	if err := e.compile(); err != nil {
		return nil, err
	}
	return e, nil
}

// Effective returns what holds for a job that asks for all that p allows: what
// "policy explain" shows without a job.
func (p Policy) Effective() (*Effective, error) {
	return Narrow(p, Settings{NewDependencies: true, DatabaseMigrations: true}, Task{
		NewDependencies: true, DatabaseMigrations: true, Minutes: p.Jobs.Minutes, Repairs: p.Jobs.Repairs,
	})
}

// Budgets divides the job's minutes into its shares.
func (e *Effective) Budgets() Budgets { return e.Policy.Limits.Budgets(e.Minutes) }

// compile makes the rules ready, so that a rule which can't be used is found
// before the job starts.
func (e *Effective) compile() (err error) {
	if err := boundedRules(slices.Concat(slices.Concat(e.Allowed...), e.Forbidden, e.Protected)); err != nil {
		return err
	}
	for _, list := range e.Allowed {
		rules := make([]AllowRule, 0, len(list))
		for _, text := range list {
			rules = append(rules, NewAllowRule(text))
		}
		e.rules.allowed = append(e.rules.allowed, rules)
	}
	if e.rules.forbidden, err = newForbidRules(e.Forbidden); err != nil {
		return fmt.Errorf("forbidden paths: %w", err)
	}
	if e.rules.protected, err = newForbidRules(e.Protected); err != nil {
		return fmt.Errorf("protected paths: %w", err)
	}
	if e.rules.protectedNames, err = newNameRules(e.ProtectedNames); err != nil {
		return fmt.Errorf("protected names: %w", err)
	}
	e.rules.known, err = loadNames()
	return err
}

// boundedRules counts in the form that grows most: one character may stand for
// eighteen, and full-width wildcards become real ones.
func boundedRules(texts []string) error {
	if len(texts) > MaxRules {
		return fmt.Errorf("%d path rules: %w", len(texts), ErrRule)
	}
	wildcards := 0
	for _, text := range texts {
		if len(text) > MaxRuleBytes {
			return fmt.Errorf("path rule of %d bytes: %w", len(text), ErrRule)
		}
		if wide := wideFold(text); hasWildcard(wide) {
			wildcards += len(wide)
		}
	}
	if wildcards > MaxWildcardBytes {
		return fmt.Errorf("path rules with %d bytes of wildcards: %w", wildcards, ErrRule)
	}
	return nil
}

func newForbidRules(texts []string) ([]ForbidRule, error) {
	rules := make([]ForbidRule, 0, len(texts))
	for _, text := range texts {
		r, err := NewForbidRule(text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// union returns all texts, sorted, each once: the order in which rules were
// written down must not change the policy's digest.
func union(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}
