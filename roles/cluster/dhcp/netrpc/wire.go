// Package netrpc implements the protocol of Go's net/rpc over HTTP CONNECT on a unix socket, which the
// reference's dhcp plugin and its daemon use.
//
// The standard library's net/rpc would make each start of the binary 4 % slower, because encoding/gob
// registers its types when the program starts. This package supports the part of gob that the protocol
// needs: structs of strings, bytes, numbers, booleans, lists and structs.
package netrpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"reflect"
)

// Ids of gob's basic types (encoding/gob, "Encoding Details").
const (
	idBool      = 1
	idInt       = 2
	idUint      = 3
	idFloat     = 4
	idBytes     = 5
	idString    = 6
	idComplex   = 7
	idInterface = 8
	// firstInner is the first id of the types that describe types.
	firstInner = 16
	// firstUser is the first id of a stream's own types.
	firstUser = 64
)

// wireType describes one type; exactly one field is set. The protocol defines names and
// order of the fields (encoding/gob, type wireType).
type wireType struct {
	ArrayT           *arrayType
	SliceT           *sliceType
	StructT          *structType
	MapT             *mapType
	GobEncoderT      *opaqueType
	BinaryMarshalerT *opaqueType
	TextMarshalerT   *opaqueType
}

type commonType struct {
	Name string
	ID   int
}

type arrayType struct {
	CommonType commonType
	Elem, Len  int
}

type sliceType struct {
	CommonType commonType
	Elem       int
}

type structType struct {
	CommonType commonType
	Field      []fieldType
}

type fieldType struct {
	Name string
	ID   int
}

type mapType struct {
	CommonType commonType
	Key, Elem  int
}

// opaqueType is a type that encodes itself into bytes.
type opaqueType struct{ CommonType commonType }

var errType = errors.New("type cannot be sent")

// numbering assigns ids to types.
type numbering struct {
	ids  map[reflect.Type]int
	next int
}

// typeID returns a type's id. It assigns ids to the type and its parts if they have none, and calls
// each for every new id.
func (n *numbering) typeID(t reflect.Type, each func(id int, w wireType) error) (int, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if id := basicID(t); id != 0 {
		return id, nil
	}
	if id, ok := n.ids[t]; ok {
		return id, nil
	}
	id := n.next
	n.next++
	n.ids[t] = id
	common := commonType{Name: t.Name(), ID: id}
	switch t.Kind() {
	case reflect.Slice:
		elem, err := n.typeID(t.Elem(), each)
		if err != nil {
			return 0, err
		}
		return id, each(id, wireType{SliceT: &sliceType{CommonType: common, Elem: elem}})
	case reflect.Struct:
		s := &structType{CommonType: common}
		for f := range t.Fields() {
			fid, err := n.typeID(f.Type, each)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", f.Name, err)
			}
			s.Field = append(s.Field, fieldType{Name: f.Name, ID: fid})
		}
		return id, each(id, wireType{StructT: s})
	}
	return 0, fmt.Errorf("%s: %w", t, errType)
}

// basicID returns the id of a type that needs no description, else 0.
func basicID(t reflect.Type) int {
	switch t.Kind() {
	case reflect.Bool:
		return idBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return idInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return idUint
	case reflect.String:
		return idString
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return idBytes
		}
	}
	return 0
}

// appendUint appends a number below 128 as one byte, others as the negated number of
// their bytes and the bytes, highest first.
func appendUint(b []byte, v uint64) []byte {
	if v < 0x80 {
		return append(b, byte(v))
	}
	n := (bits.Len64(v) + 7) / 8
	b = append(b, byte(-n))
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], v)
	return append(b, raw[8-n:]...)
}

// appendInt appends a number with its sign in the lowest bit.
func appendInt(b []byte, v int64) []byte {
	return appendUint(b, uint64(v)<<1^uint64(v>>63))
}

var errShort = errors.New("message ends too early")

// reader reads the values of a message.
type reader struct{ b []byte }

func (r *reader) uint() (uint64, error) {
	if len(r.b) == 0 {
		return 0, errShort
	}
	first := r.b[0]
	r.b = r.b[1:]
	if first < 0x80 {
		return uint64(first), nil
	}
	n := -int(int8(first))
	if n > 8 || n > len(r.b) {
		return 0, errShort
	}
	var v uint64
	for _, c := range r.b[:n] {
		v = v<<8 | uint64(c)
	}
	r.b = r.b[n:]
	return v, nil
}

func (r *reader) int() (int64, error) {
	v, err := r.uint()
	return int64(v>>1) ^ -int64(v&1), err
}

// count reads a number of elements, each of which takes at least one byte.
func (r *reader) count() (int, error) {
	n, err := r.uint()
	if err == nil && n > uint64(len(r.b)) {
		err = errShort
	}
	return int(n & math.MaxInt32), err
}

func (r *reader) bytes() ([]byte, error) {
	n, err := r.count()
	if err != nil {
		return nil, err
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b, nil
}
