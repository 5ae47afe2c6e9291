package supervisor

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// PairState is how far the introduction has come.
type PairState string

// The states of a pairing.
const (
	// Unpaired: no claim was taken yet.
	Unpaired PairState = "unpaired"
	// Claimed: a binding is stored, but no beat was answered 200 yet. A new
	// link takes any agent, since the claim's answer may have been lost.
	Claimed PairState = "claimed"
	// Paired: a beat was answered 200.
	Paired PairState = "paired"
	// Revoked: paired, and 401 for a lasting time since. A new link takes the
	// same agent on the same origin.
	Revoked PairState = "revoked"
)

// PairingConfig says who is paired and how a link looks.
type PairingConfig struct {
	// Dir is STATE/identity/binding: existing, 0700, ours.
	Dir       string
	RuntimeID protocol.RuntimeID
	// PublicKey is base64url without padding.
	PublicKey string
	// PublicHost is what a link names: host or host:port.
	PublicHost string
	// Unreachable says why the control plane can't come to PublicHost; while it
	// says something no link is made.
	Unreachable string
	LinkTTL     time.Duration
	// Origins are the ones that a claim may name.
	Origins []protocol.Origin
	Log     *slog.Logger
}

// Pairing keeps link and binding. All methods may be called at once; of two
// claims at once one wins. On disk there is always one whole state: binding.json
// is written before link.json says that its token is used, so that a crash in
// between leaves a binding whose claim may be repeated.
type Pairing struct {
	config PairingConfig
	store  store

	// current is what readers without the lock see; nil when unpaired.
	current atomic.Pointer[binding]

	// mu is held over a change of the files.
	mu    sync.Mutex
	links links
	// signed counts signatures for the current token.
	signed int
	// secret is told of tokens and credentials; nil until a supervisor is there.
	secret func(string)
	// watchers are told of every new binding or state; telling never blocks.
	watchers []chan struct{}
}

// OpenPairing reads what is stored. An error wraps ErrState: files that can't be
// read, are open to others, or belong to another identity.
func OpenPairing(config PairingConfig) (*Pairing, error) {
	p := &Pairing{config: config, store: store{config.Dir}}
	if p.config.Log == nil {
		p.config.Log = slog.New(slog.DiscardHandler)
	}
	if err := p.store.checkDir(); err != nil {
		return nil, err
	}
	if err := p.readBinding(); err != nil {
		return nil, err
	}
	if _, err := p.store.read(linkFile, &p.links); err != nil {
		return nil, err
	}
	return p, nil
}

// tellSecrets makes secret know every token and credential from now on.
func (p *Pairing) tellSecrets(secret func(string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.secret = secret
	p.hide()
}

// hide tells the redaction what no text may show. mu is held.
func (p *Pairing) hide() {
	if p.secret == nil {
		return
	}
	if p.links.Token != "" {
		p.secret(string(p.links.Token))
	}
	if b := p.current.Load(); b != nil {
		p.secret(string(b.Credential))
	}
}

func (p *Pairing) readBinding() error {
	var b binding
	found, err := p.store.read(bindingFile, &b)
	if err != nil || !found {
		return err
	}
	if b.RuntimeID != p.config.RuntimeID || !equalText(b.PublicKey, p.config.PublicKey) {
		return stateError(bindingFile, "it belongs to another identity than the key")
	}
	if !slices.Contains(p.config.Origins, b.Origin) {
		return stateError(bindingFile, "its origin is not one of control_plane.origins")
	}
	p.current.Store(&b)
	return nil
}

// State is how far the pairing has come.
func (p *Pairing) State() PairState { return p.current.Load().state() }

func (b *binding) state() PairState {
	switch {
	case b == nil:
		return Unpaired
	case b.ConfirmedAt.IsZero():
		return Claimed
	case !b.RevokedAt.IsZero():
		return Revoked
	}
	return Paired
}

// Link returns the current connection link, and makes a new one if there is
// none that works or rotate asks for it; the old one is revoked. While paired
// it is ErrPaired, and where nobody could come by it ErrUnreachable.
func (p *Pairing) Link(rotate bool) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.State() == Paired {
		return "", ErrPaired
	}
	if why := p.config.Unreachable; why != "" {
		return "", unreachable(why)
	}
	now := time.Now()
	if rotate || !p.links.works(now) {
		next := p.links.fresh(now, p.config.LinkTTL)
		if err := p.store.write(linkFile, next); err != nil {
			return "", fmt.Errorf("storing the link: %w", err)
		}
		p.links, p.signed = next, 0
		p.hide()
	}
	link, err := protocol.NewLink(p.config.PublicHost, p.links.Token)
	return link.Text(), err
}

// maxSignatures is how many challenges one token may have answered (attack case
// H07): the control plane asks once a try.
const maxSignatures = 20

// refusal is a sentence that the owner reads on the control plane's page.
type refusal string

// Error returns the sentence.
func (r refusal) Error() string { return string(r) }

// Reasons to refuse a challenge or claim.
const (
	errOrigin   = refusal("This link was used by another origin.")
	errTooOften = refusal("This connection link was used too often. Create a new one.")
	errOther    = refusal("This runtime belongs to another agent. Only the agent that it was paired with can connect it again.")
)

// admit checks a token for a challenge or claim. mu is held.
func (p *Pairing) admit(token protocol.PairingToken, now time.Time) error {
	if p.State() == Paired {
		// Whatever the token: links had their use.
		return errToken{endUsed}
	}
	return p.links.check(token, now)
}

// Admit tells whether a token works now, without using it up.
func (p *Pairing) Admit(token protocol.PairingToken) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.admit(token, time.Now())
}

// admitSignature is Admit, and counts the signature that follows.
func (p *Pairing) admitSignature(token protocol.PairingToken) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.admit(token, time.Now()); err != nil {
		return err
	}
	if p.signed >= maxSignatures {
		return errTooOften
	}
	p.signed++
	return nil
}

// Claim stores the binding that a claim offers and then uses up its token. The
// caller has checked that the claim is well formed; origin is its listed origin.
// When it returns nil the binding is durable.
func (p *Pairing) Claim(c protocol.ClaimRequest, origin protocol.Origin) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now().UTC()
	if err := p.admit(c.Token, now); err != nil {
		return err
	}
	next := binding{
		Version: stateVersion, RuntimeID: p.config.RuntimeID, PublicKey: p.config.PublicKey,
		AgentID: c.AgentID, AgentName: oneLine(c.AgentName, maxAgentName), Origin: origin,
		Credential: c.RuntimeCredential, ClaimedAt: now,
	}
	if old := p.current.Load(); old.state() == Revoked {
		if old.AgentID != next.AgentID || old.Origin != next.Origin {
			return errOther
		}
		// It stays bound to this agent also if no beat is answered any more.
		next.ConfirmedAt, next.RevokedAt = old.ConfirmedAt, old.RevokedAt
	}
	if err := p.store.write(bindingFile, next); err != nil {
		return fmt.Errorf("storing the binding: %w", err)
	}
	// A crash here leaves the binding and a token that still works: the claim
	// may come once more and changes nothing.
	p.current.Store(&next)
	p.hide()
	p.useUp(now)
	p.tell()
	return nil
}

// useUp marks the token as used. If that can't be stored the token is used up
// in memory all the same: the binding is durable and that is what counts.
func (p *Pairing) useUp(now time.Time) {
	p.links, p.signed = p.links.ended(endUsed, now), 0
	if err := p.store.write(linkFile, p.links); err != nil {
		p.config.Log.Error("the used link could not be stored", "error", err)
	}
}

// watch returns a channel that is told of every new binding or state.
func (p *Pairing) watch() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	watcher := make(chan struct{}, 1)
	p.watchers = append(p.watchers, watcher)
	return watcher
}

// tell wakes the watchers. mu is held.
func (p *Pairing) tell() {
	for _, watcher := range p.watchers {
		select {
		case watcher <- struct{}{}:
		default:
		}
	}
}

// confirm notes that a beat of b was answered 200: from now on no other agent
// can take this identity.
func (p *Pairing) confirm(b *binding) error {
	return p.replace(b, func(next *binding) {
		if next.ConfirmedAt.IsZero() {
			next.ConfirmedAt = time.Now().UTC()
		}
		next.RevokedAt = time.Time{}
	})
}

// revoked notes that 401 has lasted: links are possible again.
func (p *Pairing) revoked(b *binding) error {
	return p.replace(b, func(next *binding) { next.RevokedAt = time.Now().UTC() })
}

// replace changes the binding b; it does nothing if b is no longer the current
// one. Copy, modify, store, then swap.
func (p *Pairing) replace(b *binding, change func(*binding)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current.Load() != b {
		return nil
	}
	next := *b
	change(&next)
	if err := p.store.write(bindingFile, next); err != nil {
		return fmt.Errorf("storing the binding: %w", err)
	}
	p.current.Store(&next)
	p.tell()
	return nil
}
