package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// commitTree is the submitted commit's tree as a layer, with what is known of
// the change. Its repository's base layer is the commit's.
type commitTree struct {
	repository
	claim claim
	files []changedFile
	// restore is a file with the base versions of changed test files; "" when
	// there is nothing to run them for. restoreAll holds those of changed
	// settings, too; "" when the change touches none.
	restore, restoreAll string
	// tests tells tests from what is tested.
	tests testRules
	// cross is what the cross-check runs; nil: nothing to check.
	cross *crossing
}

// changedFile is one path of the change with both of its texts.
type changedFile struct {
	gitops.ChangedPath
	exec          bool
	before, after sideOf
}

// checkOut fetches the merge base and the commit, each into a git sandbox.
func (v *verification) checkOut(ctx context.Context, c claim) (commitTree, error) {
	v.review(protocol.VerificationCheckout, "Fetching the commit")
	var got commitTree
	err := v.fetching(ctx, c.room, func(webCtx context.Context) (err error) {
		got, err = v.checkOutOnce(ctx, webCtx, c)
		return err
	})
	return got, err
}

func (v *verification) checkOutOnce(ctx, webCtx context.Context, c claim) (commitTree, error) {
	out := commitTree{claim: c}
	var base, head tree
	both, bothCtx := errgroup.WithContext(webCtx)
	both.Go(func() (err error) { base, err = v.fetchTree(ctx, bothCtx, c, c.base); return err })
	both.Go(func() (err error) { head, err = v.fetchTree(ctx, bothCtx, c, c.head); return err })
	err := both.Wait()
	defer v.end(base.place)
	defer v.end(head.place)
	if err != nil {
		return out, err
	}
	if err := agree(c, base.manifest, head.manifest); err != nil {
		return out, err
	}
	out.repository = repository{room: c.room, manifest: head.manifest}
	v.facts.base, v.facts.commit = c.base, c.head
	if out.plan, out.setUp, err = v.reviewPlan(c, base, head); err != nil {
		return out, err
	}
	out.files = changedTexts(c, base, head)
	if err := v.keepBaseTests(&out, base); err != nil {
		return out, err
	}
	if err := v.plantTests(&out, base); err != nil {
		return out, err
	}
	layers, err := head.place.Freeze(ctx, []sandbox.Part{{Paths: []string{sandbox.Workspace}}})
	if err != nil {
		return out, fmt.Errorf("freezing the commit's tree: %w", err)
	}
	out.base = layers[0]
	return out, nil
}

// fetchTree writes one commit's tree into a sandbox, which the caller ends.
func (v *verification) fetchTree(ctx, webCtx context.Context, c claim, commit gitops.ObjectID) (tree, error) {
	place, err := v.create(ctx, c.room, v.spec(c.room, sandbox.ProfileGit, ""))
	if err != nil {
		return tree{}, err
	}
	manifest, err := v.indexPack(ctx, webCtx, c.room, c.from, place, commit)
	return tree{ctx: ctx, place: place, manifest: manifest}, err
}

// agree holds the two written trees against what the trees alone had told, in
// other sandboxes: a git worker that was taken over would have to lie alike in
// each.
func agree(c claim, base, head gitops.Manifest) error {
	if head.Tree != c.tree {
		return otherTree(head.Tree, c.tree)
	}
	if !slices.Equal(gitops.DiffTrees(base, head), c.changed) {
		return fail(protocol.CodeInternalError, "comparing the trees", errors.New("the files differ in other paths than the trees"))
	}
	return nil
}

// reviewPlan finds out how the commit is tested. What the target branch had when
// the change began decides, not the change, which could bring commands and
// settings of its own: only where the change touches a manifest, or the base has
// no tests to detect, its own count, and that is noted (attack case C18).
func (v *verification) reviewPlan(c claim, base, head tree) (plan policies.Plan, setUp policies.SetUp, err error) {
	if plan, err = fundedPlan(v.task.Policy.RequiredCommands, protocol.MaxReviewCommands); err != nil {
		return plan, setUp, err
	}
	v.facts.plan = plan
	if plan, err = detectPlan(v.facts.plan, base); err != nil {
		if plan, err = detectPlan(v.facts.plan, head); err != nil {
			return plan, setUp, err
		}
		v.note(protocol.SeverityLow, "The tests come with the change", "The target branch has no toolchain with tests that could be detected.")
	}
	v.facts.plan = plan
	manifests := base
	if v.touchesManifest(c) {
		v.note(protocol.SeverityLow, "The change touches dependency manifests", "What the tests need is read from the commit, not from the target branch.")
		manifests = head
	}
	setUp, err = setUpOf(plan, manifests)
	return plan, setUp, err
}

func (v *verification) touchesManifest(c claim) bool {
	return slices.ContainsFunc(v.violations(c), func(found policies.Violation) bool {
		return found.Kind == policies.ViolationDependencies
	})
}

// violations are the rules that the change's paths break.
func (v *verification) violations(c claim) []policies.Violation {
	changes := make([]policies.Change, 0, len(c.changed))
	kinds := map[gitops.PathStatus]policies.ChangeKind{
		gitops.PathAdded: policies.ChangeAdd, gitops.PathModified: policies.ChangeModify, gitops.PathDeleted: policies.ChangeDelete,
	}
	for _, p := range c.changed {
		changes = append(changes, policies.Change{Path: p.Path, Kind: kinds[p.Status]})
	}
	return c.rules.Judge(changes)
}

// maxChangedText bounds the texts of a change that are kept for the judgement,
// in bytes.
const maxChangedText = 4 << 20

func changedTexts(c claim, base, head tree) []changedFile {
	files, left := make([]changedFile, 0, len(c.changed)), maxChangedText
	for _, p := range c.changed {
		f := changedFile{ChangedPath: p, before: sideOf{exists: true, odd: true}, after: sideOf{exists: true, odd: true}}
		if left > 0 {
			f.before = sideIn(base.ctx, base.place, base.manifest, p.Path)
			f.after = sideIn(head.ctx, head.place, head.manifest, p.Path)
		}
		if e, found := head.manifest.Lookup(p.Path); found {
			f.exec = e.Mode.IsExec()
		}
		left -= len(f.before.text) + len(f.after.text)
		files = append(files, f)
	}
	return files
}

// Bounds of the test files that are put back, in bytes.
const (
	maxTestFile  = 4 << 20
	maxTestFiles = 32 << 20
)

// keepBaseTests spools the base versions of the test files that the change
// touches, alone and with those of settings.
func (v *verification) keepBaseTests(c *commitTree, base tree) (err error) {
	c.tests = newTestRules(c.plan.Commands, base, c.claim.changed)
	if !slices.ContainsFunc(base.Paths(), func(p string) bool { return c.tests.covers(p) && !isTestControl(p) }) {
		return nil // nothing to run against the change
	}
	if c.restore, err = v.keepBase(c.claim, base, "tests", c.tests.covers, nil); err != nil {
		return err
	}
	if slices.ContainsFunc(c.claim.changed, func(p gitops.ChangedPath) bool { return isTestSetting(p.Path) }) {
		c.restoreAll, err = v.keepBase(c.claim, base, "settings", c.tests.orSetting, nil)
	}
	return err
}

// keepBase spools the base versions of the wanted paths that the change touches:
// what was changed or deleted as it was, what was added as absent; and, changed
// or not, the planted files with their texts. "" says that there are none.
func (v *verification) keepBase(
	c claim, base tree, name string, wanted func(path string) bool, planted map[string]plainFile,
) (string, error) {
	files, deletes := slices.Collect(maps.Values(planted)), []string(nil)
	left := maxTestFiles
	for _, p := range smallestFirst(c.changed, base.manifest) {
		if _, is := planted[p.Path]; is || !wanted(p.Path) {
			continue
		}
		entry, existed := base.manifest.Lookup(p.Path)
		if entry.Mode.IsLink() {
			entry = behind(base.manifest, entry)
		}
		switch {
		case !existed:
			deletes = append(deletes, p.Path)
			continue
		case !entry.Mode.IsFile() || entry.Size > min(maxTestFile, int64(left)):
			v.note(protocol.SeverityMedium, "A changed test file could not be put back", fmt.Sprintf("%q is too large, or no file.", p.Path))
			continue
		}
		text, ok := readInside(base.ctx, base.place, entry.Path, maxTestFile)
		if !ok {
			return "", fail(protocol.CodeSandboxCrashed, "reading a test file", fmt.Errorf("%q of the base", p.Path))
		}
		left -= len(text)
		files = append(files, plainFile{path: p.Path, exec: entry.Mode.IsExec(), text: text})
	}
	if len(files)+len(deletes) == 0 {
		return "", nil
	}
	return v.spoolTree(name, files, append(deletes, inTheWay(c, files, wanted)...))
}

// behind is the file that a link of the base leads to, to be put back in the
// link's place, or the link itself where there is none.
func behind(base gitops.Manifest, link gitops.Entry) gitops.Entry {
	for _, e := range base.Entries {
		if e.Mode.IsFile() && leadsTo(link, e.Path) {
			return e
		}
	}
	return link
}

// smallestFirst orders a change so that large data can't use up the room that
// the tests themselves need.
func smallestFirst(changed []gitops.ChangedPath, base gitops.Manifest) []gitops.ChangedPath {
	size := func(p gitops.ChangedPath) int64 {
		entry, _ := base.Lookup(p.Path)
		return entry.Size
	}
	sorted := slices.Clone(changed)
	slices.SortStableFunc(sorted, func(a, b gitops.ChangedPath) int { return cmp.Compare(size(a), size(b)) })
	return sorted
}

// inTheWay are paths, not wanted themselves, that took the place of a directory
// above a test: a link, mostly.
func inTheWay(c claim, files []plainFile, wanted func(path string) bool) (paths []string) {
	for _, p := range c.changed {
		if p.Status == gitops.PathAdded && !wanted(p.Path) && hasBelow(files, p.Path) {
			paths = append(paths, p.Path)
		}
	}
	return paths
}

func (v *verification) spoolTree(name string, files []plainFile, deletes []string) (string, error) {
	name = v.spoolPath(spoolPrefix + name + spoolSuffix)
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return "", fmt.Errorf("keeping the base tests: %w", err)
	}
	defer file.Close()
	if err := writeTree(file, files, deletes); err != nil {
		return "", fmt.Errorf("keeping the base tests: %w", err)
	}
	return name, file.Close()
}
