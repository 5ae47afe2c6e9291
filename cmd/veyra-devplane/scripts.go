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
	s.byTitle[unique] = script{providertest.Steps(steps...), providertest.Steps(repair...)}
	return unique
}

// decide is the model: the qualification's answer where no tools are offered,
// else the job's next step.
func (s *scripts) decide(c providertest.Conversation) providertest.Step {
	return providertest.Qualify(qualificationFile, qualificationText, s.next)(c)
}

// The control plane's standing qualification.
const (
	qualificationFile = "qualification/ready.txt"
	qualificationText = "VEYRA_AGENT_READY_V1\n"
)

// next takes the script whose title stands on a line of its own, as a careful
// prompt has it, else the longest title that the prompt holds: "Fix (2)" holds
// "Fix", and "repair" may be any sentence's word.
func (s *scripts) next(c providertest.Conversation) providertest.Step {
	found, known := s.find(func(title string) bool { return strings.Contains("\n"+c.User+"\n", "\n"+title+"\n") })
	if !known {
		found, known = s.find(func(title string) bool { return strings.Contains(c.User, title) })
	}
	if !known {
		return providertest.Step{Text: "There is no script for this task."}
	}
	return providertest.Repair(found.steps, found.repair, "This is repair")(c)
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
