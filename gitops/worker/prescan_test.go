package worker

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"github.com/pjbgf/sha1cd"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// rawPack builds packs by hand, right ones and wrong ones.
type rawPack struct {
	bytes.Buffer
	starts []int
	z      *zlib.Writer
}

func newRawPack(count uint32) *rawPack {
	p := &rawPack{}
	p.WriteString("PACK\x00\x00\x00\x02")
	_ = binary.Write(p, binary.BigEndian, count)
	return p
}

// add writes a header of any size, what stands between header and content, and
// the deflated content.
func (p *rawPack) add(kind byte, size int64, between string, content io.Reader) {
	p.starts = append(p.starts, p.Len())
	p.Write(objectHeader(kind, size))
	p.WriteString(between)
	if p.z == nil {
		p.z = zlib.NewWriter(p)
	}
	p.z.Reset(p)
	_, _ = io.Copy(p.z, content)
	_ = p.z.Close()
}

// ofs is the distance to the nth object, in the pack's own varint.
func (p *rawPack) ofs(nth int) string {
	back := uint64(p.Len() - p.starts[nth])
	b := []byte{byte(back & 0x7f)}
	for back >>= 7; back > 0; back >>= 7 {
		back--
		b = append([]byte{0x80 | byte(back&0x7f)}, b...)
	}
	return string(b)
}

func (p *rawPack) sealed() []byte {
	h := sha1cd.New()
	h.Write(p.Bytes())
	return h.Sum(bytes.Clone(p.Bytes()))
}

// delta is a delta's content: the two sizes and commands.
func delta(base, target uint64, commands string) string {
	b := binary.AppendUvarint(nil, base)
	return string(binary.AppendUvarint(b, target)) + commands
}

type zeros int64

func (z *zeros) Read(p []byte) (int, error) {
	if *z <= 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), int64(*z))
	clear(p[:n])
	*z -= zeros(n)
	return int(n), nil
}

func bomb(n int64) io.Reader { z := zeros(n); return &z }

func small(s string) io.Reader { return strings.NewReader(s) }

func scanned(pack []byte) error {
	return prescan(bytes.NewReader(pack), io.Discard, gitops.DefaultLimits())
}

// Attack case F04. None of these packs makes anybody allocate or compute.
func TestPackBombsEndAtTheScan(t *testing.T) {
	one := func(kind byte, size int64, between string, content io.Reader) []byte {
		p := newRawPack(1)
		p.add(kind, size, between, content)
		return p.sealed()
	}
	deltas := func(n int, target uint64, chain bool) []byte {
		p := newRawPack(uint32(n + 1))
		p.add(packBlob, 3, "", small("abc"))
		for i := range n {
			base := 0
			if chain {
				base = i
			}
			d := delta(3, target, "\x90\x03")
			p.add(packOfsDelta, int64(len(d)), p.ofs(base), small(d))
		}
		return p.sealed()
	}
	cut := one(packBlob, 3, "", small("abc"))
	flipped := bytes.Clone(cut)
	flipped[len(flipped)-1] ^= 1
	damaged := bytes.Clone(cut)
	damaged[16] ^= 0xff
	cases := map[string]struct {
		pack []byte
		kind gitops.Kind
	}{
		"declared 2 GiB":             {one(packBlob, 2<<30, "", small("")), gitops.KindTooLarge},
		"declared beyond int64":      {append(newRawPack(1).Bytes(), bytes.Repeat([]byte{0xbf}, 20)...), gitops.KindTooLarge},
		"more than declared":         {one(packBlob, 10, "", bomb(1<<24)), gitops.KindUnsupported},
		"less than declared":         {one(packBlob, 10, "", small("abc")), gitops.KindUnsupported},
		"delta of 1 GB":              {one(packRefDelta, 8, strings.Repeat("x", 20), small(delta(3, 1<<30, "\x00"))), gitops.KindTooLarge},
		"many deltas of 99 MiB":      {deltas(60, 99<<20, false), gitops.KindTooLarge},
		"chain of 10^5 deltas":       {deltas(100_000, 3, true), gitops.KindTooLarge},
		"delta without sizes":        {one(packRefDelta, 0, strings.Repeat("x", 20), small("")), gitops.KindUnsupported},
		"base before the start":      {one(packOfsDelta, 4, "\xff\x7f", small(delta(3, 3, "\x90\x03"))), gitops.KindUnsupported},
		"base between objects":       {one(packOfsDelta, 4, "\x01", small(delta(3, 3, "\x90\x03"))), gitops.KindUnsupported},
		"4,294,967,295 objects":      {newRawPack(1<<32 - 1).sealed(), gitops.KindTooLarge},
		"object of no type":          {one(5, 3, "", small("abc")), gitops.KindUnsupported},
		"wrong checksum":             {flipped, gitops.KindUnsupported},
		"damaged deflate":            {damaged, gitops.KindUnsupported},
		"bytes behind":               {append(bytes.Clone(cut), 0), gitops.KindUnsupported},
		"cut in the checksum":        {cut[:len(cut)-1], gitops.KindCut},
		"cut in an object":           {cut[:15], gitops.KindCut},
		"cut before the first":       {cut[:12], gitops.KindCut},
		"nothing":                    {nil, gitops.KindCut},
		"no pack":                    {[]byte("<html>log in, please</html>"), gitops.KindUnsupported},
		"one object fewer than said": {newRawPack(2).sealed(), gitops.KindUnsupported},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := scanned(c.pack); gitops.KindOf(err) != c.kind {
				t.Errorf("error = %v, want kind %v", err, c.kind)
			}
		})
	}
}

func TestPackOverItsBoundIsLeftEarly(t *testing.T) {
	p := newRawPack(1)
	p.add(packBlob, 3, "", small("abc"))
	var kept bytes.Buffer
	lim := gitops.DefaultLimits()
	lim.Pack = 10
	err := prescan(bytes.NewReader(p.sealed()), &kept, lim)
	if gitops.KindOf(err) != gitops.KindTooLarge || kept.Len() > 10 {
		t.Errorf("error = %v, %d bytes kept", err, kept.Len())
	}
}

func TestScanKeepsThePackAsItIs(t *testing.T) {
	p := newRawPack(3)
	p.add(packBlob, 3, "", small("abc"))
	d := delta(3, 3, "\x90\x03")
	p.add(packOfsDelta, int64(len(d)), p.ofs(0), small(d))
	p.add(packBlob, 200_000, "", bomb(200_000))
	var kept bytes.Buffer
	if err := prescan(bytes.NewReader(p.sealed()), &kept, gitops.DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept.Bytes(), p.sealed()) {
		t.Error("the stored pack differs")
	}
}

func TestThinPackIsUnsupported(t *testing.T) {
	p := newRawPack(1)
	d := delta(3, 3, "\x90\x03")
	p.add(packRefDelta, int64(len(d)), strings.Repeat("x", 20), small(d))
	err := receive(t.TempDir(), bytes.NewReader(p.sealed()), gitops.DefaultLimits())
	if gitops.KindOf(err) != gitops.KindUnsupported {
		t.Errorf("error = %v", err)
	}
}

func FuzzPrescan(f *testing.F) {
	p := newRawPack(2)
	p.add(packBlob, 3, "", small("abc"))
	d := delta(3, 3, "\x90\x03")
	p.add(packOfsDelta, int64(len(d)), p.ofs(0), small(d))
	f.Add(p.sealed())
	f.Add(p.Bytes())
	f.Add([]byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff"))
	lim := gitops.Limits{Object: 1 << 16, Pack: 1 << 16, Inflated: 1 << 18, Objects: 100, Chain: 10}
	f.Fuzz(func(t *testing.T, b []byte) {
		var kept bytes.Buffer
		err := prescan(bytes.NewReader(b), &kept, lim)
		if err == nil && !bytes.Equal(kept.Bytes(), b) {
			t.Fatal("a pack that passed was not stored whole")
		}
		if kind := gitops.KindOf(err); kind == gitops.KindInternal {
			t.Fatalf("a stranger's bytes made %v", err)
		}
	})
}

// FuzzIndex hands on what the scan lets through: the library must not fall.
func FuzzIndex(f *testing.F) {
	p := newRawPack(2)
	p.add(packBlob, 3, "", small("abc"))
	d := delta(3, 3, "\x90\x03")
	p.add(packOfsDelta, int64(len(d)), p.ofs(0), small(d))
	f.Add(p.Bytes()[12:], uint32(2))
	lim := gitops.Limits{Object: 1 << 16, Pack: 1 << 16, Inflated: 1 << 18, Objects: 100, Chain: 10}
	f.Fuzz(func(t *testing.T, b []byte, count uint32) {
		p := newRawPack(count)
		p.Write(b)
		if err := receive(t.TempDir(), bytes.NewReader(p.sealed()), lim); gitops.KindOf(err) == gitops.KindInternal {
			t.Fatalf("a stranger's bytes made %v", err)
		}
	})
}

func FuzzTree(f *testing.F) {
	id, _ := hex.DecodeString(strings.Repeat("ab", 20))
	for _, head := range []string{"100644 a\x00", "40000 d\x00", "040000 d\x00", "100664 old\x00", "160000 sub\x00", "120000 .gitmodules\x00"} {
		f.Add(append([]byte(head), id...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := parseTree("", b)
		if err == nil && !bytes.Equal(encodeTree(entries), b) {
			t.Fatal("a tree that was read is not written back as it was")
		}
	})
}
