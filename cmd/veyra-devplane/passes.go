package main

import (
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
)

// passLife is how long a repository token is good: as long as GitHub's.
const passLife = time.Hour

// passes are the repository tokens: each opens one repository and ends with its
// time. The control plane issues them, the git host takes nothing else.
type passes struct {
	git *githosttest.Host
	now func() time.Time

	mu  sync.Mutex
	out []pass // the oldest first
}

type pass struct {
	owner, name, token string
	ends               time.Time
}

func newPasses(git *githosttest.Host, now func() time.Time) *passes {
	return &passes{git: git, now: now}
}

// issue makes a token for "owner/name" that may write.
func (p *passes) issue(repository string) (token string, ends time.Time) {
	owner, name, _ := strings.Cut(repository, "/")
	return p.grant(owner, name, githosttest.Write)
}

// lend makes a token for "owner/name" that may only read, another each time.
func (p *passes) lend(repository string) (token string, ends time.Time) {
	owner, name, _ := strings.Cut(repository, "/")
	return p.grant(owner, name, githosttest.Read)
}

func (p *passes) grant(owner, name string, access githosttest.Access) (string, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	made := pass{owner, name, "ghs_" + rand.Text() + rand.Text(), p.now().Add(passLife)}
	p.out = append(p.out, made)
	p.git.Grant(owner, name, made.token, access)
	return made.token, made.ends
}

// withdraw ends one token before its time.
func (p *passes) withdraw(token string) {
	p.end(func(out pass) bool { return out.token == token })
}

func (p *passes) end(over func(pass) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.out[:0]
	for _, out := range p.out {
		if over(out) {
			p.git.Grant(out.owner, out.name, out.token, githosttest.None)
			continue
		}
		kept = append(kept, out)
	}
	p.out = kept
}

// guard ends what is over before a request is looked at.
func (p *passes) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := p.now()
		p.end(func(out pass) bool { return !now.Before(out.ends) })
		next.ServeHTTP(w, r)
	})
}
