package abitext

import (
	"fmt"
	"reflect"
	"strings"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/ib"
)

// A trace prints a struct of the ABI as name=value in the kernel's spelling, with names for numbers that have one. This is slow
// and runs only while a tool traces.

// printers format fields with these names; others are decimal.
var printers = map[string]func(uint64) string{
	"access_flags":        func(v uint64) string { return flagText(accessNames, v) },
	"qp_access_flags":     func(v uint64) string { return flagText(accessNames, v) },
	"qp_type":             func(v uint64) string { return Name(qpTypeNames, v) },
	"qp_state":            func(v uint64) string { return Name(QPStates, v) },
	"cur_qp_state":        func(v uint64) string { return Name(QPStates, v) },
	"srq_type":            func(v uint64) string { return Name(srqTypeNames, v) },
	"path_mtu":            mtuText,
	"max_mtu":             mtuText,
	"active_mtu":          mtuText,
	"start":               hexText,
	"hca_va":              hexText,
	"lkey":                hexText,
	"rkey":                hexText,
	"qkey":                hexText,
	"qpn":                 hexText,
	"dest_qp_num":         hexText,
	"device_cap_flags":    hexText,
	"device_cap_flags_ex": hexText,
	"port_cap_flags":      hexText,
	"create_flags":        hexText,
	"comp_channel": func(v uint64) string {
		return fmt.Sprint(int32(v))
	},
}

// boring fields are not shown: response addresses and reserved fields.
var boring = map[string]bool{
	"response": true, "user_handle": true, "reserved": true, "response_length": true, "comp_mask": true,
	"async_fd": true, "fd": true,
	"uid": true, "optval": true, "private_data": true, "param": true, "ib_route[1]": true,
}

func hexText(v uint64) string { return fmt.Sprintf("%#x", v) }

func mtuText(v uint64) string {
	if v >= 1 && v <= 5 {
		return fmt.Sprint(128 << v)
	}
	return fmt.Sprintf("enum(%d)", v)
}

// Arguments prints a request.
func Arguments(v any) string {
	switch r := v.(type) {
	case *abi.ModifyQP:
		return modification(r)
	case *abi.ExModifyQP:
		return modification(&r.Base)
	case *abi.ModifySRQ:
		return fmt.Sprintf("srq_handle=%d attr_mask=%s max_wr=%d srq_limit=%d",
			r.SRQHandle, flagText(srqMaskNames, uint64(r.AttrMask)), r.MaxWR, r.SRQLimit)
	case *abi.QueryQP:
		return fmt.Sprintf("qp_handle=%d attr_mask=%s", r.QPHandle, flagText(qpMaskNames, uint64(r.AttrMask)))
	}
	return fields(reflect.ValueOf(v).Elem(), nil, true)
}

// Results prints a response; zero fields are omitted, unless they are handles.
func Results(v any) string { return fields(reflect.ValueOf(v).Elem(), nil, false) }

// fields prints the fields of a struct: only those in the set if there is one, and zero fields only if zeros is set.
func fields(v reflect.Value, only map[string]bool, zeros bool) string {
	var parts []string
	t := v.Type()
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("c")
		if name == "" || boring[name] || only != nil && !only[name] {
			continue
		}
		if !zeros && v.Field(i).IsZero() && !strings.HasSuffix(name, "_handle") {
			continue
		}
		text := value(name, v.Field(i))
		if name == "base" {
			parts = append(parts, text)
		} else {
			parts = append(parts, name+"="+text)
		}
	}
	return strings.Join(parts, " ")
}

func value(name string, f reflect.Value) string {
	switch f.Kind() {
	case reflect.Struct:
		s := fields(f, nil, false)
		if name == "base" {
			return s
		}
		return "{" + s + "}"
	case reflect.Array:
		if a, ok := f.Interface().(abi.Sockaddr); ok {
			addr, _ := abi.FromSockaddr(&a)
			return addr.String()
		}
		var g ib.GID
		if f.Len() != len(g) {
			return fmt.Sprint(f.Interface())
		}
		reflect.Copy(reflect.ValueOf(&g).Elem(), f)
		return GID(g)
	}
	var n uint64
	if f.CanInt() {
		n = uint64(f.Int())
	} else {
		n = f.Uint()
	}
	if p := printers[name]; p != nil {
		return p(n)
	}
	return fmt.Sprint(n)
}

// qpFields are the fields that each bit of attr_mask selects.
var qpFields = map[uint32][]string{
	abi.QPMaskState: {"qp_state"}, abi.QPMaskCurState: {"cur_qp_state"},
	abi.QPMaskEnSQDAsyncNotify: {"en_sqd_async_notify"}, abi.QPMaskAccessFlags: {"qp_access_flags"},
	abi.QPMaskPKeyIndex: {"pkey_index"}, abi.QPMaskPort: {"port_num"}, abi.QPMaskQKey: {"qkey"},
	abi.QPMaskAV: {"dest"}, abi.QPMaskPathMTU: {"path_mtu"}, abi.QPMaskTimeout: {"timeout"},
	abi.QPMaskRetryCnt: {"retry_cnt"}, abi.QPMaskRNRRetry: {"rnr_retry"}, abi.QPMaskRQPSN: {"rq_psn"},
	abi.QPMaskMaxQPRDAtomic: {"max_rd_atomic"},
	abi.QPMaskAltPath:       {"alt_dest", "alt_pkey_index", "alt_port_num", "alt_timeout"},
	abi.QPMaskMinRNRTimer:   {"min_rnr_timer"}, abi.QPMaskSQPSN: {"sq_psn"},
	abi.QPMaskMaxDestRDAtomic: {"max_dest_rd_atomic"}, abi.QPMaskPathMigState: {"path_mig_state"},
	abi.QPMaskDestQPN: {"dest_qp_num"},
}

// modification prints a MODIFY_QP: the mask and the fields that it selects.
func modification(r *abi.ModifyQP) string {
	only := map[string]bool{}
	for bit, names := range qpFields {
		if r.AttrMask&bit != 0 {
			for _, n := range names {
				only[n] = true
			}
		}
	}
	return fmt.Sprintf("qp_handle=%d attr_mask=%s %s", r.QPHandle, flagText(qpMaskNames, uint64(r.AttrMask)),
		fields(reflect.ValueOf(r).Elem(), only, true))
}
