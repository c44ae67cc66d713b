package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

const (
	// mostOps bounds the operations of a transaction: etcd allows 128.
	mostOps = 120
	// mostBytes bounds the bytes of a transaction: etcd allows 1.5 MB, and an entry may have 1 MB.
	mostBytes = 1 << 20
)

// A record is the value of keyCommit.
type record struct {
	Schema int    `json:"schema"`
	ID     string `json:"id"`
	Pieces int    `json:"pieces"`
}

// A pending commit is visible, and its pieces are being copied to their keys.
type pending struct {
	record
	at     int64                  // the revision at which it became visible
	pieces [][]store.Write        // one is copied at a time
	writes map[string]store.Write // of all pieces
	// missing are the keys that have not been written yet.
	missing map[string]struct{}
	// broken is why the commit cannot be read; then nothing of it is visible.
	broken error
}

// appendWrites encodes a piece: for each write the lengths of key and value, the latter plus one, or
// zero for a delete.
func appendWrites(b []byte, writes []store.Write) []byte {
	for _, w := range writes {
		b = append(binary.AppendUvarint(b, uint64(len(w.Key))), w.Key...)
		if w.Delete {
			b = binary.AppendUvarint(b, 0)
			continue
		}
		b = append(binary.AppendUvarint(b, uint64(len(w.Value))+1), w.Value...)
	}
	return b
}

// readWrites decodes a piece, which any client may have written.
func readWrites(b []byte) (writes []store.Write, err error) {
	cut := func(n uint64) []byte {
		if n > uint64(len(b)) {
			err = errors.New("a piece of a commit is cut short")
			return nil
		}
		out := b[:n:n]
		b = b[n:]
		return out
	}
	number := func() uint64 {
		x, n := binary.Uvarint(b)
		if n <= 0 {
			err = errors.New("a piece of a commit has a wrong number")
			return 0
		}
		b = b[n:]
		return x
	}
	for len(b) > 0 && err == nil {
		w := store.Write{Key: string(cut(number()))}
		if err != nil {
			break
		}
		if size := number(); size == 0 {
			w.Delete = true
		} else {
			w.Value = cut(size - 1)
		}
		if writes = append(writes, w); err == nil && len(writes) > mostOps {
			err = fmt.Errorf("a piece of a commit has more than %d writes", mostOps)
		}
	}
	if err != nil {
		return nil, err
	}
	return writes, store.Check(nil, writes)
}

// cutPieces divides writes into pieces.
func cutPieces(writes []store.Write) (pieces [][]store.Write) {
	size := 0
	for i, w := range writes {
		n := len(w.Key) + len(w.Value) + 16
		if i == 0 || size+n > mostBytes || len(pieces[len(pieces)-1]) == mostOps {
			pieces, size = append(pieces, nil), 0
		}
		last := len(pieces) - 1
		pieces[last], size = append(pieces[last], w), size+n
	}
	return pieces
}

// validID reports whether an id may be part of keys.
func validID(id string) bool {
	return len(id) >= 16 && len(id) <= 64 && strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

func (p *pending) has(key string) bool {
	_, has := p.writes[key]
	return has
}

// changes are the changes of the commit.
func (p *pending) changes() (changes []store.Change) {
	for _, w := range p.writes {
		changes = append(changes, store.Change{Key: w.Key, Value: w.Value, Deleted: w.Delete})
	}
	return changes
}

// copied reports whether an event is the copy of a piece, which changes nothing.
func (p *pending) copied(e store.Entry, deleted bool) bool {
	if p == nil {
		return false
	}
	w, has := p.writes[e.Key]
	return has && w.Delete == deleted && (deleted || string(w.Value) == string(e.Value))
}

// over are entries with the commit applied.
func (p *pending) over(entries []store.Entry) []store.Entry {
	out := slices.DeleteFunc(slices.Clone(entries), func(e store.Entry) bool { return p.has(e.Key) })
	for _, w := range p.writes {
		if !w.Delete {
			out = append(out, store.Entry{Key: w.Key, Value: w.Value, Revision: p.at})
		}
	}
	return out
}

// expect records the keys that have not been written yet. at returns the revision of a key in etcd.
func (p *pending) expect(at func(key string) int64) {
	p.missing = make(map[string]struct{})
	for key, w := range p.writes {
		if now := at(key); !w.Delete && now <= p.at || w.Delete && now != 0 {
			p.missing[key] = struct{}{}
		}
	}
}
