package main

import (
	"fmt"
	"strings"
	"sync"

	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// scripts are what the model does, by the title of the job that a conversation
// is about. Titles are made unique, since the title is all of a job that a
// prompt is sure to show.
type scripts struct {
	mu      sync.Mutex
	byTitle map[string]script
}

type script struct {
	steps, repair func(providertest.Conversation) providertest.Step
	// fail is the criterion, counted from 1, that a verifier is told is not
	// met; 0: none.
	fail int
}

func newScripts() *scripts { return &scripts{byTitle: map[string]script{}} }

// add keeps the steps of a job and returns its title, numbered when taken.
func (s *scripts) add(title string, steps, repair []providertest.Step) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	unique := title
	for n := 2; s.byTitle[unique].steps != nil; n++ {
		unique = fmt.Sprintf("%s (%d)", title, n)
	}
	if len(repair) == 0 {
		repair = steps
	}
	s.byTitle[unique] = script{steps: providertest.Steps(steps...), repair: providertest.Steps(repair...)}
	return unique
}

// fail has the model fail one criterion of a job from now on; 0: none.
func (s *scripts) fail(title string, criterion int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.byTitle[title]
	found.fail = criterion
	s.byTitle[title] = found
}

// decide is the model: where no tools are offered, a verifier's judgement or the
// qualification's answer, else the job's next step.
func (s *scripts) decide(c providertest.Conversation) providertest.Step {
	if criteria, asked := criteriaOf(c.User); asked && len(c.Tools) == 0 {
		found, _ := s.meant(c.User)
		return judge(c.User, criteria, found.fail)
	}
	return providertest.Qualify(qualificationFile, qualificationText, s.next)(c)
}

// The control plane's standing qualification.
const (
	qualificationFile = "qualification/ready.txt"
	qualificationText = "VEYRA_AGENT_READY_V1\n"
)

func (s *scripts) next(c providertest.Conversation) providertest.Step {
	found, known := s.meant(c.User)
	if !known {
		return providertest.Step{Text: "There is no script for this task."}
	}
	return providertest.Repair(found.steps, found.repair, "This is repair")(c)
}

// meant takes the script whose title stands on a line of its own, as a careful
// prompt has it, else the longest title that the prompt holds: "Fix (2)" holds
// "Fix", and "repair" may be any sentence's word.
func (s *scripts) meant(prompt string) (script, bool) {
	found, known := s.find(func(title string) bool { return strings.Contains("\n"+prompt+"\n", "\n"+title+"\n") })
	if !known {
		found, known = s.find(func(title string) bool { return strings.Contains(prompt, title) })
	}
	return found, known
}

// find returns the script with the longest title that fits.
func (s *scripts) find(fits func(title string) bool) (script, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	best, found, known := "", script{}, false
	for title, its := range s.byTitle {
		if fits(title) && (!known || len(title) > len(best)) {
			best, found, known = title, its, true
		}
	}
	return found, known
}
