package control

import (
	"bytes"
	"encoding/json"
	"fmt"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Objects are sent as a JSON list. The sender may be hostile: a list of rules of two bytes each takes 70 times its size
// in memory. So the decoder bounds the number of values first.
type Objects []tenant.Object

const (
	// mostObjects bounds how many there are in a request.
	mostObjects = 100_000
	// A value in a list takes at least elementSize bytes of the request, fields in braces at least braceSize. Shorter
	// ones are allowed up to someElements. Real objects are longer.
	elementSize  = 4
	braceSize    = 10
	someElements = 4096
)

func (list Objects) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, o := range list {
		text, err := tenant.Marshal(o)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, text...)
	}
	return append(out, ']'), nil
}

// UnmarshalJSON reads objects one by one, and ends with the first that is invalid.
func (list *Objects) UnmarshalJSON(text []byte) error {
	if err := bounded(text); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('[') {
		return fmt.Errorf("objects: want a list")
	}
	for *list = nil; d.More(); {
		if len(*list) == mostObjects {
			return fmt.Errorf("objects: there are more than %d: apply them in several files", mostObjects)
		}
		var one json.RawMessage
		if err := d.Decode(&one); err != nil {
			return err
		}
		o, err := tenant.UnmarshalStrict(one)
		if err != nil {
			return fmt.Errorf("objects[%d]: %w", len(*list), err)
		}
		*list = append(*list, o)
	}
	return nil
}

// bounded refuses JSON that consists of little more than commas or braces.
func bounded(text []byte) error {
	elements, braces, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == ',', c == '[':
			elements++
		case c == '{':
			braces++
		}
	}
	if elements > len(text)/elementSize+someElements || braces > len(text)/braceSize+someElements {
		return fmt.Errorf("objects: %d values and %d times fields in %d bytes are too many: write fewer, longer rules", elements, braces, len(text))
	}
	return nil
}
