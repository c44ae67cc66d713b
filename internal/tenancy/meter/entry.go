package meter

import (
	"encoding/binary"
	"hash/crc32"
)

// An entry is a total or a record.
type entry struct {
	record bool
	at     recordKey
	usage  Usage
}

// appendColumns appends the first entry of a file.
func appendColumns(b []byte) []byte {
	b = append(b, entryColumns)
	b = binary.AppendUvarint(b, uint64(NumColumns))
	for _, n := range names {
		b = appendText(b, n)
	}
	return b
}

func appendEntry(b []byte, e *entry) []byte {
	kind := byte(entryTotal)
	if e.record {
		kind = entryRecord
	}
	b = append(b, kind)
	b = appendText(appendText(appendText(b, e.at.Tenant), e.at.Network), e.at.NIC)
	if e.record {
		b = binary.AppendVarint(b, e.at.from)
		b = binary.AppendUvarint(b, uint64(e.at.span))
	}
	n := 0
	for _, v := range e.usage {
		if v != 0 {
			n++
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	for i, v := range e.usage {
		if v != 0 {
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(i)), v)
		}
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// parse reads the entries of a frame, all or none. columns are those of the file, from its first entry.
func parse(body []byte, columns *[]Column) (out []entry, ok bool) {
	p := parser{rest: body}
	for len(p.rest) > 0 && !p.bad {
		switch kind := p.byte(); kind {
		case entryColumns:
			*columns = p.columns()
		case entryTotal, entryRecord:
			e := entry{record: kind == entryRecord}
			e.at.Key = Key{p.text(), p.text(), p.text()}
			if e.record {
				e.at.from, e.at.span = p.varint(), uint32(p.uvarint(day))
			}
			p.usage(&e.usage, *columns)
			p.bad = p.bad || e.record && (e.at.span == 0 || e.at.from < 0 || e.at.from > 1<<40)
			out = append(out, e)
		default:
			p.bad = true
		}
	}
	return out, !p.bad
}

// A parser reads a frame. After an error it reads zeros.
type parser struct {
	rest []byte
	bad  bool
}

const (
	mostText    = 256
	mostColumns = 1024
)

func (p *parser) byte() byte {
	if len(p.rest) == 0 {
		p.bad = true
		return 0
	}
	b := p.rest[0]
	p.rest = p.rest[1:]
	return b
}

func (p *parser) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 || v > most {
		p.bad, p.rest = true, nil
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		p.bad, p.rest = true, nil
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) text() string {
	n := int(p.uvarint(mostText))
	if n > len(p.rest) {
		p.bad, p.rest = true, nil
		return ""
	}
	s := string(p.rest[:n])
	p.rest = p.rest[n:]
	return s
}

// columns reads the columns of the file; -1 is an unknown one.
func (p *parser) columns() []Column {
	n := int(p.uvarint(mostColumns))
	list := make([]Column, 0, n)
	for range n {
		list = append(list, columnNamed(p.text()))
	}
	return list
}

func (p *parser) usage(u *Usage, columns []Column) {
	n := int(p.uvarint(mostColumns))
	for range n {
		i, v := p.uvarint(mostColumns), p.uvarint(1<<64-1)
		if p.bad || i >= uint64(len(columns)) {
			p.bad = true
			return
		}
		if c := columns[i]; c >= 0 {
			u[c] = v
		}
	}
}

// frame writes length and checksum before b[8:].
func frame(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-8))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

// frames are the frames for entries: of a whole file, or of a flush. None is longer than mostFrame.
func frames(whole bool, entries []entry) [][]byte {
	b := make([]byte, 8, 4096)
	if whole {
		b = appendColumns(b)
	}
	var out [][]byte
	for i := range entries {
		// In a flush a total and its record stay together.
		if len(b) > mostFrame/2 && (whole || !entries[i].record) {
			out = append(out, frame(b))
			b = make([]byte, 8, 4096)
		}
		b = appendEntry(b, &entries[i])
	}
	if len(b) > 8 {
		out = append(out, frame(b))
	}
	return out
}
