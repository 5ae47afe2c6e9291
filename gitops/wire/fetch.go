package wire

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// ListRefs gives the ids of those of the full ref names that exist, for
// example "refs/heads/main". Prefix twins ("refs/heads/main2") never appear.
func (r *Remote) ListRefs(ctx context.Context, names ...string) (map[string]gitops.ObjectID, error) {
	ctx, w, stop := r.watched(ctx)
	defer stop()
	t := r.talk(uploadPack, "listing refs")
	a, err := t.advert(ctx, w, names, nil)
	if err != nil || a.version != 2 {
		return a.exact(), err
	}
	return t.lsRefs(ctx, w, names)
}

func (a *advert) exact() map[string]gitops.ObjectID {
	if a == nil {
		return nil
	}
	return a.refs
}

// Branch gives the commit at the tip of a branch, ErrBranchMissing without
// one.
func (r *Remote) Branch(ctx context.Context, branch string) (gitops.ObjectID, error) {
	if err := CheckBranch(branch); err != nil {
		return "", err
	}
	name := "refs/heads/" + branch
	refs, err := r.ListRefs(ctx, name)
	if err != nil {
		return "", err
	}
	id, ok := refs[name]
	if !ok {
		return "", &Error{Kind: ErrBranchMissing, Op: "listing refs"}
	}
	return id, nil
}

// advert begins a conversation and reads the advertisement.
func (t *talk) advert(ctx context.Context, w *watch, names []string, commits []gitops.ObjectID) (*advert, error) {
	resp, err := t.advertisement(ctx)
	if err != nil {
		return nil, err
	}
	defer closeBody(resp)
	a, err := readAdvert(w.incoming(resp.Body), names, commits)
	w.active.Store(false)
	if err == nil {
		err = a.checkFormat()
	}
	if err != nil {
		return nil, t.explain(ctx, err)
	}
	t.v2 = a.version == 2
	return a, nil
}

// explain names the kind of an error in the middle of an answer.
func (t *talk) explain(ctx context.Context, err error) error {
	var said *serverError
	var known *Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &said):
		t.cfg.Log.Warn("git server refused", "op", t.op, "text", shorten(said.text))
		return t.fail(ErrUnreachable, "%w", err)
	case errors.Is(err, errCap):
		return t.fail(ErrTooLarge, "%w", err)
	case errors.Is(err, errFormat):
		return t.fail(ErrUnsupported, "%w", err)
	}
	return t.broken(ctx, err)
}

func (t *talk) lsRefs(ctx context.Context, w *watch, names []string) (map[string]gitops.ObjectID, error) {
	want := make(map[string]bool, len(names))
	req := pktLine("command=ls-refs\n") + pktLine("object-format=sha1\n") + delimPkt + pktLine("peel\n")
	for _, name := range names {
		want[name] = true
		req += pktLine("ref-prefix %s\n", name)
	}
	resp, err := t.post(ctx, text(req+flushPkt))
	if err != nil {
		return nil, err
	}
	defer closeBody(resp)
	refs, err := readRefs(newPktReader(w.incoming(resp.Body), maxAdvertisement), want)
	if err != nil {
		return nil, t.explain(ctx, err)
	}
	return refs, nil
}

func text(s string) func() (io.Reader, int64, error) {
	return func() (io.Reader, int64, error) { return strings.NewReader(s), int64(len(s)), nil }
}

// readRefs reads "<id> <name> [attributes]" lines and keeps the exact names.
func readRefs(p *pktReader, want map[string]bool) (map[string]gitops.ObjectID, error) {
	refs := map[string]gitops.ObjectID{}
	for {
		kind, b, err := p.next()
		if err != nil {
			return nil, noEOF(err)
		}
		if kind != pktText {
			return refs, nil
		}
		fields := strings.Fields(line(b))
		if len(fields) < 2 {
			return nil, errAdvert
		}
		if !want[fields[1]] {
			continue
		}
		id, err := gitops.ParseObjectID(fields[0])
		if err != nil {
			return nil, errAdvert
		}
		refs[fields[1]] = id
	}
}

// Filter leaves objects out of a fetch.
type Filter string

// The filters that are asked for.
const (
	FilterTrees Filter = "tree:0"    // commits only
	FilterBlobs Filter = "blob:none" // commits and trees
)

// Want is what a fetch asks for.
type Want struct {
	// IDs are the commits, one or more. Older tips may be named, too.
	IDs []gitops.ObjectID
	// Depth is how many commits deep; 0 means all of the history.
	Depth int
	// Filter leaves objects out; "" leaves out none.
	Filter Filter
}

// FetchPack fetches one commit at depth 1 and copies the pack's bytes to w as
// they come. The id may be an older tip: after a crash the same base is
// fetched again, not the branch, which may have moved.
func (r *Remote) FetchPack(ctx context.Context, id gitops.ObjectID, w io.Writer) error {
	return r.Fetch(ctx, Want{IDs: []gitops.ObjectID{id}, Depth: 1}, w)
}

// Fetch copies the bytes of one pack with what is wanted to w as they come. An
// error leaves w with a part; ErrReceiver means that w itself failed, and
// ErrNoFilter that this server can't leave anything out, before w got a byte.
func (r *Remote) Fetch(ctx context.Context, want Want, w io.Writer) error {
	ctx, watch, stop := r.watched(ctx)
	defer stop()
	t := r.talk(uploadPack, "fetching pack")
	a, err := t.advert(ctx, watch, nil, want.IDs)
	if err != nil {
		return err
	}
	req, err := t.fetchRequest(a, want)
	if err != nil {
		return err
	}
	resp, err := t.post(ctx, text(req))
	if err != nil {
		return err
	}
	defer closeBody(resp)
	d := &download{
		// Framing and keep-alive lines come on top of the pack itself.
		p:   newPktReader(watch.incoming(resp.Body), r.cfg.MaxPack+r.cfg.MaxPack/8+1<<20),
		out: watch.receiver(w), max: r.cfg.MaxPack, log: t.note,
	}
	if err := d.run(a.version); err != nil {
		return t.fetchError(ctx, err)
	}
	return nil
}

// notOurs is git's wording for a commit that it does not have or does not show;
// nothing but the text says so.
const notOurs = "not our ref"

// fetchError tells a commit that is not there from other refusals, which may
// pass: a server that is busy says so in the same place.
func (t *talk) fetchError(ctx context.Context, err error) error {
	var said *serverError
	if errors.As(err, &said) && said.want && strings.Contains(said.text, notOurs) {
		return t.fail(ErrBranchMissing, "%w", err)
	}
	return t.explain(ctx, err)
}

// note logs a server's progress or error text, quoted by the log.
func (t *talk) note(text string) {
	t.cfg.Log.Info("git server says", "op", t.op, "text", shorten(text))
}

func (t *talk) fetchRequest(a *advert, want Want) (string, error) {
	if want.Filter != "" && !a.filters() {
		// Asked all the same, a server dies with status 200 and an empty body.
		return "", t.fail(ErrNoFilter, "%s", want.Filter)
	}
	if a.version == 2 {
		return t.fetchV2(a, want)
	}
	return t.fetchV0(a, want)
}

// filters reports whether the server can leave objects out.
func (a *advert) filters() bool {
	return a.has("fetch", "filter") || a.version != 2 && a.has("filter", "")
}

// bounds are the lines for depth and filter, the same in both versions.
func (w Want) bounds(shallow bool) (lines string) {
	if w.Depth > 0 && shallow {
		lines += pktLine("deepen %d\n", w.Depth)
	}
	if w.Filter != "" {
		lines += pktLine("filter %s\n", w.Filter)
	}
	return lines
}

func (t *talk) fetchV2(a *advert, want Want) (string, error) {
	if !a.has("fetch", "") || !a.has("ls-refs", "") {
		return "", t.fail(ErrUnsupported, "server offers no fetch")
	}
	req := pktLine("command=fetch\n")
	if a.has("object-format", "") {
		req += pktLine("object-format=sha1\n")
	}
	req += delimPkt + pktLine("no-progress\n") + pktLine("ofs-delta\n")
	for _, id := range want.IDs {
		req += pktLine("want %s\n", id)
	}
	return req + want.bounds(a.has("fetch", "shallow")) + pktLine("done\n") + flushPkt, nil
}

func (t *talk) fetchV0(a *advert, want Want) (string, error) {
	if !a.has("side-band-64k", "") {
		return "", t.fail(ErrUnsupported, "server offers no side band")
	}
	if !a.gives(want.IDs) {
		return "", t.fail(ErrBranchMissing, "server has no ref at one of %s and allows no other", want.IDs)
	}
	caps := " side-band-64k"
	for _, name := range []string{"ofs-delta", "no-progress"} {
		if a.has(name, "") {
			caps += " " + name
		}
	}
	if want.Filter != "" {
		caps += " filter"
	}
	caps += " agent=" + agent(t.cfg.UserAgent)
	req := ""
	for _, id := range want.IDs { // the capabilities stand in the first line only
		req += pktLine("want %s%s\n", id, caps)
		caps = ""
	}
	return req + want.bounds(a.has("shallow", "")) + flushPkt + pktLine("done\n"), nil
}

// agent is a capability value: no spaces, nothing but printable ASCII.
func agent(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '-'
		}
		return r
	}, s)
}
