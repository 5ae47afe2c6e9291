package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

const (
	zeroID    = "0000000000000000000000000000000000000000"
	maxReport = 1 << 20
)

// Push creates a branch at a commit by one request with size bytes of pack,
// which may be read until a moment after the return. A branch that already holds the commit is success, at
// another commit it is ErrDiverged; nothing is ever overwritten or deleted.
// After a lost answer the branch is read again, so that a retry of a push that
// arrived says success. ErrPushRefused is final.
func (r *Remote) Push(ctx context.Context, branch string, id gitops.ObjectID, pack io.ReaderAt, size int64) error {
	if err := CheckBranch(branch); err != nil {
		return err
	}
	if _, err := gitops.ParseObjectID(string(id)); err != nil {
		return fmt.Errorf("pushing: %w: %w", ErrInvalid, err)
	}
	ctx, w, stop := r.watched(ctx)
	defer stop()
	p := &push{talk: r.talk(receivePack, "pushing branch"), w: w, ref: "refs/heads/" + branch, id: id, pack: pack, size: size}
	a, there, err := p.look(ctx)
	if err != nil || there {
		return err
	}
	err = p.send(ctx, a)
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrRefused) || errors.Is(err, ErrUnsupported) {
		return err
	}
	return p.confirm(ctx, err)
}

// Preview is what a server showed of a branch before there was anything to push.
type Preview struct {
	branch string
	base   url.URL // after a redirect
	advert *advert
}

// Preview reads what a Push would read first, while the commit isn't known yet.
// It sends nothing that changes anything.
func (r *Remote) Preview(ctx context.Context, branch string) (*Preview, error) {
	if err := CheckBranch(branch); err != nil {
		return nil, err
	}
	ctx, w, stop := r.watched(ctx)
	defer stop()
	p := &push{talk: r.talk(receivePack, "looking at branch"), w: w, ref: "refs/heads/" + branch}
	a, err := p.advert(ctx, w, []string{p.ref}, nil)
	if err != nil {
		return nil, err
	}
	return &Preview{branch: branch, base: p.base, advert: a}, nil
}

// PushFrom is Push that need not look first. A preview that is out of date only
// costs time: the server takes a new branch or refuses it, and whatever it says
// then is judged by a look at the branch.
func (r *Remote) PushFrom(ctx context.Context, seen *Preview, id gitops.ObjectID, pack io.ReaderAt, size int64) error {
	if _, there := seen.advert.refs["refs/heads/"+seen.branch]; there {
		return r.Push(ctx, seen.branch, id, pack, size)
	}
	if _, err := gitops.ParseObjectID(string(id)); err != nil {
		return fmt.Errorf("pushing: %w: %w", ErrInvalid, err)
	}
	ctx, w, stop := r.watched(ctx)
	defer stop()
	p := &push{talk: r.talk(receivePack, "pushing branch"), w: w, ref: "refs/heads/" + seen.branch, id: id, pack: pack, size: size}
	p.base = seen.base
	err := p.send(ctx, seen.advert)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return p.confirm(ctx, err)
}

type push struct {
	*talk
	w    *watch
	ref  string
	id   gitops.ObjectID
	pack io.ReaderAt
	size int64
}

// look reads the branch before anything is sent.
func (p *push) look(ctx context.Context) (a *advert, there bool, err error) {
	a, err = p.advert(ctx, p.w, []string{p.ref}, nil)
	if err != nil {
		return nil, false, err
	}
	have, ok := a.refs[p.ref]
	if ok && have != p.id {
		return nil, false, p.fail(ErrDiverged, "it is at %s", have)
	}
	return a, ok, nil
}

// confirm reads the branch again after a push that failed or whose answer was
// lost: another push of ours may have been heard.
func (p *push) confirm(ctx context.Context, pushed error) error {
	again := &push{talk: p.talk.Remote.talk(receivePack, p.op), w: p.w, ref: p.ref, id: p.id}
	_, there, err := again.look(ctx)
	switch {
	case there:
		return nil
	case errors.Is(err, ErrDiverged):
		return err
	}
	return pushed
}

func (p *push) send(ctx context.Context, a *advert) error {
	if !a.has("report-status", "") {
		return p.fail(ErrUnsupported, "server reports no status")
	}
	head := p.command(a)
	resp, err := p.post(ctx, func() (io.Reader, int64, error) { return p.body(head) })
	if err != nil {
		return uploadRefused(err)
	}
	defer closeBody(resp)
	report, err := readReport(p.w.incoming(resp.Body), a.has("side-band-64k", ""), p.note)
	if err != nil {
		return p.explain(ctx, err)
	}
	return p.judge(report)
}

// uploadRefused tells a refused request (too long, malformed) from a refused
// credential: no other credential would help.
func uploadRefused(err error) error {
	var e *Error
	if errors.As(err, &e) && errors.Is(e.Kind, ErrRefused) && !credentialStatus(e.Status) {
		e.Kind = ErrPushRefused
	}
	return err
}

// command names the one ref to create. Only offered capabilities are asked.
func (p *push) command(a *advert) string {
	caps := " report-status"
	if a.has("side-band-64k", "") {
		caps += " side-band-64k"
	}
	if a.has("object-format", "") {
		caps += " object-format=sha1"
	}
	if a.has("agent", "") {
		caps += " agent=" + agent(p.cfg.UserAgent)
	}
	return pktLine("%s %s %s\x00%s", zeroID, p.id, p.ref, caps) + flushPkt
}

// body is the command and the whole pack, with a reader of its own for each
// request: the transport may still read an earlier one.
func (p *push) body(head string) (io.Reader, int64, error) {
	whole := io.MultiReader(strings.NewReader(head), io.NewSectionReader(p.pack, 0, p.size))
	return p.w.outgoing(whole), int64(len(head)) + p.size, nil
}

// judge wants both lines: the pack was taken and the ref was made.
func (p *push) judge(r report) error {
	switch {
	case r.unpack == "ok" && r.ok[p.ref]:
		return nil
	case r.unpack == "":
		return p.fail(ErrUnreachable, "no report of the push")
	case r.unpack != "ok":
		p.note(r.unpack)
		return p.fail(ErrPushRefused, "server could not take the pack: %q", shorten(r.unpack))
	}
	p.note(r.ng[p.ref])
	return p.fail(ErrPushRefused, "%q", shorten(r.ng[p.ref]))
}

// report is what a server says about a push (man page gitprotocol-pack).
type report struct {
	unpack string
	ok     map[string]bool
	ng     map[string]string
}

// readReport takes the report out of the answer, with or without side band.
func readReport(body io.Reader, sideband bool, log func(string)) (report, error) {
	p := newPktReader(body, maxReport)
	if !sideband {
		return parseReport(p)
	}
	var inner strings.Builder
	d := &download{p: p, out: &inner, max: maxReport, log: log}
	if err := d.bands(); err != nil {
		return report{}, err
	}
	return parseReport(newPktReader(strings.NewReader(inner.String()), maxReport))
}

func parseReport(p *pktReader) (report, error) {
	r := report{ok: map[string]bool{}, ng: map[string]string{}}
	for {
		kind, b, err := p.next()
		if err != nil {
			return report{}, noEOF(err)
		}
		if kind != pktText {
			return r, nil
		}
		word, rest, _ := strings.Cut(line(b), " ")
		switch word {
		case "unpack":
			r.unpack = rest
		case "ok":
			r.ok[rest] = true
		case "ng":
			ref, reason, _ := strings.Cut(rest, " ")
			r.ng[ref] = reason
			delete(r.ok, ref)
		}
	}
}
