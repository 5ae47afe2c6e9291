package gitops

import "time"

func encodeEntry(e Entry) []byte {
	var c coder
	c.number(uint64(e.Mode))
	c.number(uint64(e.Size))
	c.digest(e.SHA256)
	c.id(e.ID)
	c.text(e.Path)
	return c.b
}

func decodeEntry(b []byte) (Entry, error) {
	d := decoder{b: b}
	e := Entry{Mode: d.mode(), Size: d.size(), SHA256: d.digest(), ID: d.id(), Path: d.text(maxPath)}
	return e, d.end("entry")
}

// mode takes the modes of files, links and gitlinks; a directory is no entry.
func (d *decoder) mode() Mode {
	n := d.number()
	m := Mode(n)
	if n > 0o177777 || !(m.IsFile() || m == ModeLink || m == ModeGitlink) {
		d.fail()
	}
	return m
}

func encodeChange(ch Change) []byte {
	var c coder
	c.octet(byte(ch.Kind))
	c.flag(ch.Exec)
	c.text(ch.Path)
	return c.b
}

func decodeChange(b []byte) (Change, error) {
	d := decoder{b: b}
	ch := Change{Kind: ChangeKind(d.octet()), Exec: d.flag(), Path: d.text(maxPath)}
	if ch.Kind != ChangeWrite && ch.Kind != ChangeDelete {
		d.fail()
	}
	return ch, d.end("change")
}

func encodeChanged(p ChangedPath) []byte {
	var c coder
	c.octet(byte(p.Status))
	c.text(p.Path)
	return c.b
}

func decodeChanged(b []byte) (ChangedPath, error) {
	d := decoder{b: b}
	p := ChangedPath{Status: PathStatus(d.octet()), Path: d.text(maxPath)}
	if p.Status < PathAdded || p.Status > PathDeleted {
		d.fail()
	}
	return p, d.end("changed path")
}

func encodeCommit(r CommitRequest) []byte {
	var c coder
	c.id(r.Parent)
	c.signed(r.Date.Unix())
	c.text(r.Message)
	return c.b
}

func decodeCommit(b []byte) (CommitRequest, error) {
	d := decoder{b: b}
	r := CommitRequest{Parent: d.id(), Date: time.Unix(d.signed(), 0).UTC(), Message: d.text(maxMessage)}
	return r, d.end("commit")
}

// summary is the payload of done, commit and end frames: ids and counts.
type summary struct {
	commit, tree ObjectID
	count        int64
}

func encodeSummary(s summary) []byte {
	var c coder
	c.id(s.commit)
	c.id(s.tree)
	c.number(uint64(s.count))
	return c.b
}

func decodeSummary(b []byte) (summary, error) {
	d := decoder{b: b}
	s := summary{commit: d.id(), tree: d.id(), count: d.size()}
	return s, d.end("summary")
}

func encodeError(kind Kind, text string) []byte {
	var c coder
	c.octet(byte(kind))
	c.text(text[:min(len(text), maxText)])
	return c.b
}

func decodeError(b []byte) (Kind, string, error) {
	d := decoder{b: b}
	kind, text := Kind(d.octet()), d.text(maxText)
	if _, known := kindNames[kind]; !known {
		d.fail()
	}
	return kind, text, d.end("error")
}
