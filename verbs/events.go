package verbs

import (
	"context"
	"fmt"
	"iter"

	"vrdma.dev/vrdma/internal/abi"
)

// An EventType is the type of an asynchronous event: enum ibv_event_type.
type EventType uint32

const (
	EventCQError     EventType = abi.EventCQErr
	EventQPFatal     EventType = abi.EventQPFatal
	EventQPRequest   EventType = abi.EventQPReqErr
	EventQPAccess    EventType = abi.EventQPAccessErr
	EventEstablished EventType = abi.EventCommEst
	EventDrained     EventType = abi.EventSQDrained
	EventDeviceFatal EventType = abi.EventDeviceFatal
	EventPortActive  EventType = abi.EventPortActive
	EventPortError   EventType = abi.EventPortErr
	EventSRQError    EventType = abi.EventSRQErr
	EventSRQLimit    EventType = abi.EventSRQLimitReached
	EventLastReceive EventType = abi.EventQPLastWQEReached
	EventGIDsChanged EventType = abi.EventGIDChange
)

func (t EventType) String() string {
	names := map[EventType]string{
		EventCQError: "completion queue error", EventQPFatal: "queue pair failed", EventQPRequest: "invalid request", EventQPAccess: "access error",
		EventEstablished: "communication established", EventDrained: "send queue drained", EventDeviceFatal: "device gone",
		EventPortActive: "port active", EventPortError: "port down", EventSRQError: "shared receive queue error",
		EventSRQLimit: "shared receive queue below its limit", EventLastReceive: "last receive taken", EventGIDsChanged: "addresses changed",
	}
	if s := names[t]; s != "" {
		return s
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// An Event is an asynchronous event of the device. At most one of CQ, QP and SRQ is set.
type Event struct {
	Type EventType
	CQ   *CQ
	QP   *QP
	SRQ  *SRQ
}

// Events iterates over the device's asynchronous events until ctx ends or the device is gone. The device
// buffers a limited number of events and drops the rest.
func (d *Device) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			select {
			case e := <-d.events:
				if !yield(e, nil) {
					return
				}
				continue
			default:
			}
			select {
			case e := <-d.events:
				if !yield(e, nil) {
					return
				}
			case <-ctx.Done():
				yield(Event{}, ctx.Err())
				return
			case <-d.ended:
				yield(Event{}, fault("wait for an event", d.err()))
				return
			}
		}
	}
}

// readAsync reads the device's asynchronous events until the device is closed.
func (d *Device) readAsync() {
	b := make([]byte, abi.Size[abi.AsyncEvent]())
	for {
		n, err := d.async.Read(b)
		if err != nil || n == 0 {
			d.end()
			return
		}
		var a abi.AsyncEvent
		if !abi.Decode(b[:n], &a) {
			continue
		}
		e := Event{Type: EventType(a.EventType)}
		if o, ok := d.objects.Load(a.Element); ok {
			switch o := o.(type) {
			case *CQ:
				e.CQ = o
			case *QP:
				e.QP = o
			case *SRQ:
				e.SRQ = o
			}
		}
		select {
		case d.events <- e:
		default:
			d.lost.Add(1)
		}
	}
}
