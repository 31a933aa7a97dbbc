package datapath

import (
	"fmt"
	"math/bits"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// generation is one ring with its pool, as its producer sees it.
type generation struct {
	ringFile, poolFile *os.File // kept for links that join later
	ring, pool         []byte   // pool is nil without slots
	entries            int
	slots, slotSize    int
	links              int // how many links the pool is sized for
	keep               uint64

	live    []liveSlot // stamped, oldest first
	retired []int      // stamp taken back; may still be claimed
	free    []int      // touched before, and certainly nobody's
	claimed []bool     // scratch of reclaim
	touched int        // slots used so far
	pending int        // acquired, neither published nor released
	old     bool       // a newer generation took over
}

type liveSlot struct {
	sequence uint64
	slot     int
}

// minLinks is how many links a pool is sized for at least. Slots nobody
// touches cost nothing, a new generation does.
const minLinks = 4

// margin is how many publications an ordered reader's oldest bag outlives the
// window, so that one made during the claim does not take it away.
const margin = 2

func newGeneration(owner string, format Format, first uint64, links, slotSize int, refused uint64) (_ *generation, err error) {
	g := &generation{slotSize: slotSize, links: max(minLinks, ceilPower(links))}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	g.keep = 2
	if slotSize > 0 {
		g.keep = uint64(min(32, max(2, 1<<20/slotSize)))
		g.slots = MaxHeld*g.links + Window + margin + int(g.keep) + MaxPending
		if g.slots > maxSlots {
			return nil, fmt.Errorf("%d links are more than one output can serve", links)
		}
		g.poolFile, g.pool, err = makeShared("tatolab-pool", g.slots*slotSize)
		if err != nil {
			return nil, err
		}
	}
	g.entries = entriesAt(g.slots)
	g.ringFile, g.ring, err = makeShared("tatolab-ring", g.entries+entryCount*entrySize)
	if err != nil {
		return nil, err
	}
	store(g.ring, ringFirst, first)
	store(g.ring, ringSlots, uint64(g.slots))
	store(g.ring, ringSlotSize, uint64(slotSize))
	store(g.ring, ringFormat, uint64(format))
	store(g.ring, ringEntries, uint64(g.entries))
	store(g.ring, ringNewest, first-1)
	store(g.ring, ringRefused, refused)
	store(g.ring, ringOwner, uint64(len(owner)))
	copy(g.ring[ringOwner+8:], owner)
	store(g.ring, 0, ringMagic)
	g.live = make([]liveSlot, 0, g.slots)
	g.retired = make([]int, 0, g.slots)
	g.free = make([]int, 0, g.slots)
	g.claimed = make([]bool, g.slots)
	return g, nil
}

// take returns a slot that nobody reads, -1 if there is none (which only a
// producer that keeps more than MaxPending slots to itself can bring about).
func (g *generation) take(links []*outLink) int {
	if len(g.free) == 0 {
		g.reclaim(links)
	}
	if n := len(g.free); n > 0 {
		slot := g.free[n-1]
		g.free = g.free[:n-1]
		return slot
	}
	if g.touched < g.slots {
		g.touched++
		store(g.ring, ringTouched, uint64(g.touched))
		return g.touched - 1
	}
	return -1
}

// reclaim moves retired slots that no link claims to the free ones. The stamps
// were taken back before a fence that has been passed since (Publish).
func (g *generation) reclaim(links []*outLink) {
	if len(g.retired) == 0 {
		return
	}
	clear(g.claimed)
	for _, l := range links {
		for cell := range MaxHeld {
			// A cell out of range is a broken reader's, and names nothing.
			if c := load(l.page, pageCells+8*cell); c >= 1 && c <= uint64(g.slots) {
				g.claimed[c-1] = true
			}
		}
	}
	kept := g.retired[:0]
	for _, slot := range g.retired {
		if g.claimed[slot] {
			kept = append(kept, slot)
		} else {
			g.free = append(g.free, slot)
		}
	}
	g.retired = kept
}

// retire takes back the stamps of the sequences that nobody is owed after the
// publication of n.
func (g *generation) retire(n uint64, links []*outLink) {
	if len(g.live) == 0 || n <= g.keep {
		return
	}
	limit := n - g.keep
	if g.live[0].sequence > limit {
		return
	}
	for _, l := range links {
		if !l.ordered {
			continue
		}
		owed := min(load(l.page, pageCursor), n)
		if n > Window+margin {
			owed = max(owed, n-Window-margin)
		}
		limit = min(limit, owed)
	}
	gone := 0
	for gone < len(g.live) && g.live[gone].sequence <= limit {
		slot := g.live[gone].slot
		store(g.ring, ringStamps+8*slot, 0)
		g.retired = append(g.retired, slot)
		gone++
	}
	if gone > 0 {
		g.live = g.live[:copy(g.live, g.live[gone:])]
	}
}

// write puts entry n into the ring and makes it the newest. slot is -1
// without one; a bag larger than MaxInline already stands in it, at bagAt.
func (g *generation) write(n uint64, bag []byte, timestamp int64, slot, bagAt, pixels int, s *Surface) {
	at := g.entries + int(n%entryCount)*entrySize
	e := unsafe.Slice(word(g.ring, at), entryWords)
	store(g.ring, at, 0)
	order()
	e[entrySlot] = uint64(slot + 1)
	e[entryBagLength] = uint64(len(bag))
	e[entryBagAt] = uint64(bagAt)
	e[entryTimestamp] = uint64(timestamp)
	e[entryPixels] = uint64(pixels)
	clear(e[entryNumber:])
	if s != nil {
		e[entryNumber] = s.Number
		e[entryResidency] = uint64(s.Residency)
		e[entryFormat] = uint64(s.Format)
		e[entryWidth], e[entryHeight] = uint64(s.Width), uint64(s.Height)
		e[entryColour] = s.Colour.word()
		e[entryPlanes] = uint64(s.NumPlanes)
		for i := range min(s.NumPlanes, len(s.Planes)) {
			e[entryPlane+2*i] = uint64(s.Planes[i].Offset)
			e[entryPlane+2*i+1] = uint64(s.Planes[i].Stride)
		}
	}
	if len(bag) <= MaxInline {
		copy(g.ring[at+entryBag:], bag)
	}
	store(g.ring, at, n)
	if slot >= 0 {
		store(g.ring, ringStamps+8*slot, n)
		g.live = append(g.live, liveSlot{n, slot})
	}
	store(g.ring, ringNewest, n)
	store(g.ring, ringTimestamp, uint64(timestamp))
}

// slot returns the bytes of a slot.
func (g *generation) slot(i int) []byte {
	return g.pool[i*g.slotSize : (i+1)*g.slotSize : (i+1)*g.slotSize]
}

// supersede ends the generation: nothing is written into its memory again. A
// slot that is being filled stays mapped until it is given back, but privately,
// so that what is still drawn there shows to nobody.
func (g *generation) supersede() error {
	g.old = true
	if g.pool != nil && g.pending > 0 {
		_, err := unix.MmapPtr(int(g.poolFile.Fd()), 0, unsafe.Pointer(&g.pool[0]), uintptr(len(g.pool)),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_NORESERVE)
		if err != nil {
			return fmt.Errorf("cannot take a pool back: mmap: %w", err)
		}
	}
	if g.pending == 0 {
		g.unmapPool()
	}
	_ = unix.Munmap(g.ring)
	g.ring = nil
	g.closeFiles()
	return nil
}

func (g *generation) unmapPool() {
	if g.pool != nil {
		_ = unix.Munmap(g.pool)
		g.pool = nil
	}
}

func (g *generation) closeFiles() {
	for _, f := range []*os.File{g.ringFile, g.poolFile} {
		if f != nil {
			f.Close()
		}
	}
	g.ringFile, g.poolFile = nil, nil
}

func (g *generation) close() {
	g.unmapPool()
	if g.ring != nil {
		_ = unix.Munmap(g.ring)
		g.ring = nil
	}
	g.closeFiles()
}

// bucket is the histogram counter of a latency in nanoseconds.
func bucket(ns int64) int {
	if ns < 0 {
		return 0
	}
	micro := uint64(ns) >> 10
	if micro < 4 {
		return int(micro)
	}
	e := bits.Len64(micro) - 1
	return min(4*(e-1)+int(micro>>(e-2)&3), histogramSize-1)
}

// histogramSize is the number of counters of a page's latency histogram.
const histogramSize = 128
