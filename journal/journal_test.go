package journal_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == childArg {
		os.Exit(playChild(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

const (
	someID    = "43725ad0-077e-46c3-a4f0-b991a459d879"
	someLease = "d128dc79-35da-483c-98b1-4c25ea91cd39"
)

var (
	someKey  = journal.Key{Kind: journal.KindJob, ID: someID, Lease: someLease}
	someTime = time.Date(2026, 11, 29, 12, 0, 0, 700_000_000, time.FixedZone("", 3600))
	someEnd  = someTime.Add(time.Hour)
)

// keyOf makes a key from a number.
func keyOf(n int) journal.Key {
	return journal.Key{Kind: journal.KindJob, ID: fmt.Sprintf("%08x-077e-46c3-a4f0-b991a459d879", n), Lease: someLease}
}

func hashOf(body string) string { return fmt.Sprintf("0x%x", sha256.Sum256([]byte(body))) }

func open(t *testing.T, state string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

// must fails the test on the first error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
}

func accept(t *testing.T, j *journal.Journal, key journal.Key) journal.Record {
	t.Helper()
	_, rec, err := j.Accept(t.Context(), key, []byte(`{"id":1}`), "token", someEnd, someTime)
	must(t, err)
	return rec
}

func signatureOf(body string) string { return "signature of " + hashOf(body) }

// seal brings a run to sealed with a body.
func seal(t *testing.T, j *journal.Journal, key journal.Key, body string) {
	t.Helper()
	accept(t, j, key)
	_, err := j.DraftEvidence(t.Context(), key, []byte(body), hashOf(body))
	must(t, err, j.Seal(t.Context(), key, hashOf(body), signatureOf(body)))
}

func TestFirstSightWins(t *testing.T) {
	j := open(t, t.TempDir())
	fresh, first, err := j.Accept(t.Context(), someKey, []byte("task"), "token 1", someEnd, someTime)
	if err != nil || !fresh {
		t.Fatalf("first: fresh %v, %v", fresh, err)
	}
	want := journal.Record{
		Key: someKey, State: journal.Accepted, Task: []byte("task"), LeaseToken: "token 1",
		LeaseEnd: someEnd.UTC(), Accepted: someTime.UTC().Truncate(time.Second), Receipt: []byte{},
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
	later := someEnd.Add(time.Minute)
	fresh, second, err := j.Accept(t.Context(), someKey, []byte("another"), "token 2", later, someTime.Add(time.Hour))
	if err != nil || fresh {
		t.Fatalf("second: fresh %v, %v", fresh, err)
	}
	want.LeaseToken, want.LeaseEnd = "token 2", later.UTC()
	if diff := cmp.Diff(want, second); diff != "" {
		t.Error(diff)
	}
}

func TestOneOfManyAtOnceIsFresh(t *testing.T) {
	j := open(t, t.TempDir())
	var group sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for n := range 8 {
		group.Go(func() {
			token := protocol.LeaseToken(fmt.Sprint("token ", n))
			fresh, _, err := j.Accept(context.Background(), someKey, []byte("task"), token, someEnd, someTime)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if fresh {
				won++
			}
		})
	}
	group.Wait()
	if won != 1 {
		t.Errorf("%d were fresh", won)
	}
}

func TestLifeOfAJobSurvivesReopening(t *testing.T) {
	state := t.TempDir()
	ctx := t.Context()
	j := open(t, state)
	accept(t, j, someKey)
	must(t,
		j.Checkpoint(ctx, someKey, "commit", []byte("old")), j.Checkpoint(ctx, someKey, "commit", []byte("new")),
		j.Checkpoint(ctx, someKey, "base", nil), j.Spend(ctx, someKey, 100), j.Spend(ctx, someKey, 23))
	seal(t, j, someKey, "evidence")
	must(t, j.Answer(ctx, someKey, "sent", 0, someTime), j.Answer(ctx, someKey, "refused", 409, someEnd), j.Close())

	j = open(t, state)
	steps, err := j.Checkpoints(ctx, someKey)
	must(t, err)
	if diff := cmp.Diff(map[string][]byte{"commit": []byte("new"), "base": {}}, steps); diff != "" {
		t.Error(diff)
	}
	answers, err := j.Answers(ctx, someKey)
	must(t, err)
	if diff := cmp.Diff([]journal.Answer{
		{Revision: 1, Class: "sent", At: someTime.UTC()},
		{Revision: 1, Class: "refused", Status: 409, At: someEnd.UTC()},
	}, answers); diff != "" {
		t.Error(diff)
	}
	if spent, err := j.Spent(ctx, someKey); spent != 123 || err != nil {
		t.Errorf("spent %d, %v", spent, err)
	}
	if spent, err := j.SpentSince(ctx, time.Now().Add(time.Hour)); spent != 0 || err != nil {
		t.Errorf("spent in the future: %d, %v", spent, err)
	}
	outbox, err := j.Outbox(ctx)
	if err != nil || len(outbox) != 1 || string(outbox[0].Seal.Body) != "evidence" ||
		outbox[0].Seal.Signature != signatureOf("evidence") || outbox[0].Draft != nil {
		t.Fatalf("outbox %+v, %v", outbox, err)
	}
	must(t, j.Deliver(ctx, someKey, []byte("receipt")), j.Deliver(ctx, someKey, []byte("again")))
	rec, err := j.Get(ctx, someKey)
	if err != nil || rec.State != journal.Delivered || string(rec.Receipt) != "receipt" || rec.Ended.IsZero() {
		t.Errorf("delivered: %+v, %v", rec, err)
	}
	if left, err := j.Unfinished(ctx); len(left) != 0 || err != nil {
		t.Errorf("unfinished %+v, %v", left, err)
	}
}

// TestCrashBetweenSignatureAndSeal covers J01: the same draft is sealed later.
func TestCrashBetweenSignatureAndSeal(t *testing.T) {
	state, ctx := t.TempDir(), t.Context()
	j := open(t, state)
	accept(t, j, someKey)
	_, err := j.DraftEvidence(ctx, someKey, []byte("evidence"), hashOf("evidence"))
	must(t, err, j.Close())
	j = open(t, state)
	left, err := j.Unfinished(ctx)
	if err != nil || len(left) != 1 || left[0].State != journal.Accepted || string(left[0].Draft.Body) != "evidence" {
		t.Fatalf("unfinished %+v, %v", left, err)
	}
	known, err := j.KnowsEvidence(ctx, someKey, hashOf("evidence"))
	if err != nil || !known {
		t.Fatalf("the signed draft is not known: %v", err)
	}
	revision, err := j.DraftEvidence(ctx, someKey, []byte("evidence"), hashOf("evidence"))
	if err != nil || revision != 1 {
		t.Fatalf("drafted again: revision %d, %v", revision, err)
	}
	must(t, j.Seal(ctx, someKey, left[0].Draft.Hash, "signature"), j.Seal(ctx, someKey, left[0].Draft.Hash, "signature"))
}

func TestRevisionsAreNewRows(t *testing.T) {
	j, ctx := open(t, t.TempDir()), t.Context()
	seal(t, j, someKey, "one")
	revision, err := j.DraftEvidence(ctx, someKey, []byte("two"), hashOf("two"))
	if err != nil || revision != 2 {
		t.Fatalf("revision %d, %v", revision, err)
	}
	rec, err := j.Get(ctx, someKey)
	if err != nil || string(rec.Seal.Body) != "one" || string(rec.Draft.Body) != "two" || rec.State != journal.Sealed {
		t.Fatalf("with a draft: %+v, %v", rec, err)
	}
	must(t, j.Seal(ctx, someKey, hashOf("two"), "second"))
	if rec, err = j.Get(ctx, someKey); err != nil || rec.Seal.Revision != 2 || rec.Draft != nil {
		t.Fatalf("sealed twice: %+v, %v", rec, err)
	}
	all, err := j.Signatures(ctx)
	must(t, err)
	if diff := cmp.Diff([]journal.Signature{
		{Key: someKey, Hash: hashOf("one"), Signature: signatureOf("one")},
		{Key: someKey, Hash: hashOf("two"), Signature: "second"},
	}, all); diff != "" {
		t.Error(diff)
	}
}

func TestOrderIsKept(t *testing.T) {
	ctx := t.Context()
	j := open(t, t.TempDir())
	draft := func(key journal.Key, body string) error {
		_, err := j.DraftEvidence(ctx, key, []byte(body), hashOf(body))
		return err
	}
	seal(t, j, keyOf(1), "sealed")
	seal(t, j, keyOf(2), "delivered")
	must(t, j.Deliver(ctx, keyOf(2), nil))
	accept(t, j, keyOf(3))
	must(t, draft(keyOf(3), "draft"), j.Abandon(ctx, keyOf(3), "lease over"), j.Abandon(ctx, keyOf(3), "later reason"))
	accept(t, j, keyOf(4))
	for name, test := range map[string]struct {
		got, want error
	}{
		"seal other signature":  {j.Seal(ctx, keyOf(1), hashOf("sealed"), "other"), journal.ErrOrder},
		"seal other hash":       {j.Seal(ctx, keyOf(1), hashOf("other"), "signature"), journal.ErrOrder},
		"seal without draft":    {j.Seal(ctx, keyOf(4), hashOf("x"), "signature"), journal.ErrOrder},
		"seal abandoned":        {j.Seal(ctx, keyOf(3), hashOf("draft"), "signature"), journal.ErrOrder},
		"seal without text":     {j.Seal(ctx, keyOf(1), hashOf("sealed"), ""), journal.ErrArgument},
		"draft delivered":       {draft(keyOf(2), "more"), journal.ErrOrder},
		"deliver accepted":      {j.Deliver(ctx, keyOf(4), nil), journal.ErrOrder},
		"deliver abandoned":     {j.Deliver(ctx, keyOf(3), nil), journal.ErrOrder},
		"abandon delivered":     {j.Abandon(ctx, keyOf(2), "why"), journal.ErrOrder},
		"abandon for no reason": {j.Abandon(ctx, keyOf(1), ""), journal.ErrArgument},
		"checkpoint delivered":  {j.Checkpoint(ctx, keyOf(2), "step", nil), journal.ErrOrder},
		"answer before seal":    {j.Answer(ctx, keyOf(4), "refused", 409, someTime), journal.ErrOrder},
		"delete accepted":       {j.Delete(ctx, keyOf(4)), journal.ErrOrder},
		"delete sealed":         {j.Delete(ctx, keyOf(1)), journal.ErrOrder},
		"unknown run":           {j.Deliver(ctx, keyOf(5), nil), journal.ErrUnknown},
		"spend less":            {j.Spend(ctx, keyOf(4), -1), journal.ErrArgument},
		"step with a path":      {j.Checkpoint(ctx, keyOf(4), "../x", nil), journal.ErrArgument},
		"huge value":            {j.Checkpoint(ctx, keyOf(4), "x", make([]byte, 4<<20+1)), journal.ErrArgument},
	} {
		if !errors.Is(test.got, test.want) {
			t.Errorf("%s: got %v, want %v", name, test.got, test.want)
		}
	}
	if _, err := j.DraftEvidence(ctx, keyOf(4), []byte("text"), hashOf("other")); !errors.Is(err, journal.ErrArgument) {
		t.Errorf("a hash that does not fit: %v", err)
	}
	if rec, err := j.Get(ctx, keyOf(3)); err != nil || rec.Reason != "lease over" || rec.State != journal.Abandoned {
		t.Errorf("abandoned: %+v, %v", rec, err)
	}
	counts, err := j.Counts(ctx)
	must(t, err)
	want := map[journal.State]int{journal.Accepted: 1, journal.Sealed: 1, journal.Delivered: 1, journal.Abandoned: 1}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Error(diff)
	}
}

func TestKeysAreChecked(t *testing.T) {
	j := open(t, t.TempDir())
	for _, key := range []journal.Key{
		{},
		{Kind: "other", ID: someID, Lease: someLease},
		{Kind: journal.KindJob, ID: "../x", Lease: someLease},
		{Kind: journal.KindJob, ID: someID, Lease: "1"},
		{Kind: journal.KindJob, ID: someID},
		{Kind: journal.KindVerification, ID: someID, Lease: "1"},
		{Kind: journal.KindQualification, ID: someID, Lease: "01"},
		{Kind: journal.KindQualification, ID: someID, Lease: "-1"},
		{Kind: journal.KindQualification, ID: someID, Lease: someLease},
	} {
		_, _, err := j.Accept(t.Context(), key, []byte("task"), "token", someEnd, someTime)
		if !errors.Is(err, journal.ErrArgument) {
			t.Errorf("%+v: %v", key, err)
		}
	}
	accept(t, j, journal.Key{Kind: journal.KindQualification, ID: someID, Lease: "2"})
	accept(t, j, journal.Key{Kind: journal.KindVerification, ID: someID, Lease: someLease})
}

func TestListIsNewestFirst(t *testing.T) {
	j := open(t, t.TempDir())
	for n := range 5 {
		seal(t, j, keyOf(n), fmt.Sprint(n))
	}
	records, err := j.List(t.Context(), 2)
	if err != nil || len(records) != 2 || records[0].Key != keyOf(4) || records[1].Key != keyOf(3) {
		t.Fatalf("%+v, %v", records, err)
	}
	if records[0].Seal == nil || records[0].Seal.Body != nil {
		t.Errorf("the list's evidence is %+v, want it without a text", records[0].Seal)
	}
}

func TestTokensAreNotPrinted(t *testing.T) {
	j := open(t, t.TempDir())
	_, rec, err := j.Accept(t.Context(), someKey, []byte("task"), "secret-token", someEnd, someTime)
	must(t, err)
	if text := fmt.Sprintf("%v %+v %#v", rec, rec, rec); cmp.Equal(text, "") || contains(text, "secret-token") {
		t.Errorf("printed: %s", text)
	}
}
