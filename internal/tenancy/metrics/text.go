package metrics

import (
	"bytes"
	"strconv"
	"strings"
)

// A page is text in Prometheus' exposition format. Samples of a family follow its HELP and TYPE.
type page struct {
	bytes.Buffer
	name string // of the family
}

// family begins a family. kind is counter or gauge.
func (p *page) family(name, kind, help string) {
	p.name = name
	p.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

// sample writes a sample: labels are alternating names and values.
func (p *page) sample(value float64, labels ...string) {
	p.WriteString(p.name)
	for i := 0; i+1 < len(labels); i += 2 {
		if i == 0 {
			p.WriteByte('{')
		} else {
			p.WriteByte(',')
		}
		p.WriteString(labels[i])
		p.WriteString(`="`)
		escape.WriteString(p, labels[i+1])
		p.WriteByte('"')
	}
	if len(labels) > 0 {
		p.WriteByte('}')
	}
	p.WriteByte(' ')
	p.Write(strconv.AppendFloat(p.AvailableBuffer(), value, 'g', -1, 64))
	p.WriteByte('\n')
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
