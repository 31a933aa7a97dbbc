// Package datapath is how bags and pixels travel from an output to its
// readers: rings and pools in shared memory, read in place. The protocol, its
// layouts and the argument for each of its races are in docs/data-path.md;
// this package implements both ends, and read-only views for figures.
package datapath

import (
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Version is the version of docs/data-path.md spoken here.
const Version = 1

// Limits of the protocol.
const (
	MaxInline  = 4096      // bytes of a bag that stands in its ring entry
	MaxBag     = 64 << 20  // bytes of a bag at all
	MaxPixels  = 1 << 30   // bytes of one picture
	MaxHeld    = 8         // frames a reader may hold per link
	MaxPending = 16        // slots that the producer itself has, unpublished or not
	Window     = 16        // bags an ordered reader may lie behind
	maxSlots   = 1<<16 - 1 // slots of a pool
	maxMessage = 4096      // bytes of a datagram on a link socket
	maxOwner   = 240       // bytes of an owner's address
)

// patience is how many failed looks at one entry a reader gives a producer
// before it calls it broken.
const patience = 10_000

// Offsets; see the tables of docs/data-path.md.
const (
	ringMagic      = 0x31474e4952544154
	ringFirst      = 8
	ringSlots      = 16
	ringSlotSize   = 24
	ringFormat     = 32
	ringEntries    = 40
	ringNewest     = 64
	ringMoved      = 128
	ringTimestamp  = 192
	ringRefused    = 200
	ringTouched    = 208
	ringOwner      = 256
	ringStamps     = 4096
	entryCount     = 64
	entrySize      = 4288
	entryWords     = 24
	entryBag       = 192
	entrySlot      = 1 // words from here on
	entryBagLength = 2
	entryBagAt     = 3
	entryTimestamp = 4
	entryPixels    = 5
	entryNumber    = 6
	entryResidency = 7
	entryFormat    = 8
	entryWidth     = 9
	entryHeight    = 10
	entryColour    = 11
	entryPlanes    = 12
	entryPlane     = 13

	pageMagic     = 0x3145474150544154
	pageSize      = 4096
	pageWaiting   = 8
	pageCursor    = 16
	pageReceived  = 24
	pageDropped   = 32
	pageStart     = 40
	pageLastRead  = 48
	pageProfile   = 56
	pageCells     = 64
	pageTimestamp = 128
	pageLeft      = 136
	pageHistogram = 1024
)

// strong is whether the processor keeps loads in order and stores in order,
// which the plain copies beside atomic words rely on.
const strong = runtime.GOARCH == "amd64"

// order keeps the plain memory accesses on one side apart from the atomic ones
// on the other, on processors that would mix them. On arm64 the
// read-modify-write is an acquire and a release, without being a full barrier
// where it is a loop (Armv8.0): what came before it is done before its store,
// which is not overtaken by a load-acquire behind it; and its load neither
// overtakes a store-release before it, nor is overtaken by what comes behind.
func order() {
	if !strong {
		var w uint64
		atomic.AddUint64(&w, 1)
	}
}

// A Format is a DRM fourcc. Zero asks for bags without pictures.
type Format uint32

// FourCC returns the format of a name of four characters, 0 for any other.
func FourCC(name string) Format {
	if len(name) != 4 {
		return 0
	}
	return Format(name[0]) | Format(name[1])<<8 | Format(name[2])<<16 | Format(name[3])<<24
}

func (f Format) String() string {
	if f == 0 {
		return ""
	}
	return string([]byte{byte(f), byte(f >> 8), byte(f >> 16), byte(f >> 24)})
}

// RGBA is red, green, blue, alpha, a byte each, in this order in memory.
// Resident asks for pictures that stay in OpenGL (docs/pictures.md): 16 bytes
// name the process and the picture. Only readers of the same stream may list it.
const (
	RGBA     = Format('A' | 'B'<<8 | '2'<<16 | '4'<<24)
	Resident = Format('T' | 'L'<<8 | 'R'<<16 | 'S'<<24)
)

// Residency says where the pixels of a surface are.
type Residency uint64

// The residencies.
const (
	NoPicture     Residency = iota
	InSlot                  // in the entry's slot
	OwnerResident           // in the owner's own memory; the slot names it
)

// Colour describes the colours of a surface in code points of ITU-T H.273
// (2 = unspecified); Range is 0 unspecified, 1 limited, 2 full.
type Colour struct {
	Primaries, Transfer, Matrix, Range uint8
}

// SRGB is full-range RGB with the primaries of BT.709 and the sRGB transfer.
var SRGB = Colour{Primaries: 1, Transfer: 13, Matrix: 0, Range: 2}

func (c Colour) word() uint64 {
	return uint64(c.Primaries) | uint64(c.Transfer)<<8 | uint64(c.Matrix)<<16 | uint64(c.Range)<<24
}

func colourOf(w uint64) Colour {
	return Colour{uint8(w), uint8(w >> 8), uint8(w >> 16), uint8(w >> 24)}
}

// Plane is a plane of a picture: where it begins within the pixels, and the
// bytes from one row to the next.
type Plane struct {
	Offset, Stride int
}

// Surface describes a picture.
type Surface struct {
	Number    uint64 // see Output.NewSurface
	Residency Residency
	Format    Format
	Width     int
	Height    int
	Colour    Colour
	Planes    [4]Plane
	NumPlanes int
}

// Packed describes a picture of one plane without padding.
func Packed(number uint64, format Format, width, height, bytesPerPixel int) Surface {
	return Surface{
		Number: number, Residency: InSlot, Format: format, Width: width, Height: height, Colour: SRGB,
		Planes: [4]Plane{{Stride: width * bytesPerPixel}}, NumPlanes: 1,
	}
}

// Profile is the delivery profile of an input.
type Profile int

// The profiles.
const (
	Newest  Profile = iota // always the latest bag
	Ordered                // every bag in order, those beyond the window dropped and counted
)

func (p Profile) String() string {
	if p == Ordered {
		return "ordered"
	}
	return "newest"
}

// ParseProfile reads "newest" or "ordered".
func ParseProfile(s string) (Profile, error) {
	switch s {
	case "newest":
		return Newest, nil
	case "ordered":
		return Ordered, nil
	}
	return 0, fmt.Errorf("delivery profile %q is neither newest nor ordered", s)
}

// Now is CLOCK_MONOTONIC in nanoseconds, the clock of every timestamp.
func Now() int64 {
	var ts unix.Timespec
	// Cannot fail: the clock exists and ts is ours.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// word returns the shared word at a byte offset of a map.
func word(m []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&m[at])) }

func load(m []byte, at int) uint64 { return atomic.LoadUint64(word(m, at)) }

func store(m []byte, at int, v uint64) { atomic.StoreUint64(word(m, at), v) }

// seals are put on a memfd once its maker has mapped it.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

// makeShared makes a memfd of size bytes that from now on only the returned
// map can write.
func makeShared(name string, size int) (*os.File, []byte, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make shared memory: memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("cannot make shared memory of %d bytes: ftruncate: %w", size, err)
	}
	m, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("cannot make shared memory of %d bytes: mmap: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Munmap(m)
		file.Close()
		return nil, nil, fmt.Errorf("cannot seal shared memory: %w", err)
	}
	return file, m, nil
}

// mapShared maps what a peer made, read-only. It must be sealed against
// shrinking, or the peer could make any later load fault.
func mapShared(fd int, what string) ([]byte, error) {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot map a %s: it is no sealed memfd: %w", what, err)
	}
	if have&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("cannot map a %s: it is not sealed against shrinking", what)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("cannot map a %s: %w", what, err)
	}
	m, err := unix.Mmap(fd, 0, int(stat.Size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("cannot map a %s: %w", what, err)
	}
	return m, nil
}

// ringShape is what a ring's header says of it, checked against its size.
type ringShape struct {
	first    uint64
	slots    int
	slotSize int
	format   Format
	entries  int
	owner    string
}

func readShape(ring []byte) (ringShape, error) {
	if len(ring) < ringStamps+entryCount*entrySize || load(ring, 0) != ringMagic {
		return ringShape{}, fmt.Errorf("this is no ring of data path version %d", Version)
	}
	s := ringShape{
		first:  load(ring, ringFirst),
		format: Format(load(ring, ringFormat)),
	}
	slots, slotSize, owner := load(ring, ringSlots), load(ring, ringSlotSize), load(ring, ringOwner)
	if slots > maxSlots || slotSize > 1<<40 || owner > maxOwner || s.first == 0 {
		return ringShape{}, fmt.Errorf("the header of a ring makes no sense")
	}
	s.slots, s.slotSize = int(slots), int(slotSize)
	s.entries = entriesAt(s.slots)
	if load(ring, ringEntries) != uint64(s.entries) || len(ring) < s.entries+entryCount*entrySize {
		return ringShape{}, fmt.Errorf("a ring is smaller than its header says")
	}
	s.owner = string(ring[ringOwner+8 : ringOwner+8+int(owner)])
	return s, nil
}

// entriesAt is the offset of the entries behind the stamps of slots.
func entriesAt(slots int) int { return roundUp(ringStamps+8*slots, 4096) }

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// ceilPower is the power of two at or above n.
func ceilPower(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}

// SurfaceID is the name by which bags know a picture.
func SurfaceID(owner string, number uint64) string {
	return fmt.Sprintf("%s#%d", owner, number)
}
