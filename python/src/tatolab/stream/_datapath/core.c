/*
 * The ordinary case of reading, waiting and publishing, in one call each.
 *
 * Optional: whatever is not ordinary (a generation changes, a bag stands in a
 * slot, a peer's numbers make no sense, a lock is taken) is left, nothing having
 * been changed, to the method of the same name with an underscore before it,
 * in Python, which can do all of it. Both act on the same memory, so that a call
 * may go either way at any time. The protocol and its races are argued in
 * docs/data-path.md; the layouts are those of _shared.py.
 *
 * Limited API of Python 3.11: one file for all later interpreters.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INTERFACE 6 /* _native.py knows the same */

enum {
	MAX_INLINE = 4096,
	MAX_OWNER = 240,
	MAX_HELD = 8,
	WINDOW = 16,
	MARGIN = 2,
	/* words of a ring */
	RING_NEWEST = 8,
	RING_MOVED = 16,
	RING_TIMESTAMP = 24,
	RING_TOUCHED = 26,
	RING_STAMPS = 512,
	ENTRY_COUNT = 64,
	ENTRY_WORDS = 536,
	ENTRY_FIELDS = 24,
	ENTRY_BAG = 24,
	/* words of a page */
	PAGE_WAITING = 1,
	PAGE_CURSOR = 2,
	PAGE_RECEIVED = 3,
	PAGE_DROPPED = 4,
	PAGE_START = 5,
	PAGE_LAST_READ = 6,
	PAGE_CELLS = 8,
	PAGE_TIMESTAMP = 16,
	PAGE_HISTOGRAM = 128,
	HISTOGRAM_SIZE = 128,
	/* words of an entry */
	SLOT = 1,
	LENGTH = 2,
	BAG_AT = 3,
	TIMESTAMP = 4,
	PIXELS = 5,
	NUMBER = 6,
	RESIDENCY = 7,
	FORMAT = 8,
	WIDTH = 9,
	HEIGHT = 10,
	PLANES = 12,
	PLANE = 13,
	/* a residency */
	OWNER_RESIDENT = 2,
};
#define MAX_BAG (64ull << 20)

/* What a slot is, in the state of its pool: _output.py knows the same. */
enum { UNTOUCHED, FREE, RETIRED, BUSY };

typedef _Atomic uint64_t word;

static inline uint64_t load(const word *w) { return atomic_load_explicit(w, memory_order_acquire); }
static inline void store(word *w, uint64_t v) { atomic_store_explicit(w, v, memory_order_release); }
static inline void fence(void) { atomic_thread_fence(memory_order_seq_cst); }

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static PyTypeObject *lock_type, *pin_type, *bag_type, *frame_type, *slot_type, *link_type, *peer_type, *pool_type;
/* The types of _input.py and _output.py that are derived from these. */
static PyTypeObject *made_bag, *made_frame, *made_slot;

static void release(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
	Py_DECREF(type);
}

/* Makes a field refer to something else; what it referred to may run code of its own. */
static void replace(PyObject **field, PyObject *by)
{
	PyObject *before = *field;
	Py_XINCREF(by);
	*field = by;
	Py_XDECREF(before);
}

static void *allocate(PyTypeObject *type) { return PyType_GenericAlloc(type, 0); }

/* --- Lock: a recursive lock that C can try ------------------------------ */

typedef struct {
	PyObject_HEAD
	PyThread_type_lock lock;
	unsigned long owner;
	unsigned depth;
} Lock;

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	Lock *self = allocate(type);
	if (self && !(self->lock = PyThread_allocate_lock())) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	return (PyObject *)self;
}

static void lock_dealloc(PyObject *o)
{
	Lock *self = (Lock *)o;
	if (self->lock)
		PyThread_free_lock(self->lock);
	release(o);
}

static int lock_try(Lock *self)
{
	unsigned long me = PyThread_get_thread_ident();
	if (self->depth && self->owner == me) {
		self->depth++;
		return 1;
	}
	if (!PyThread_acquire_lock(self->lock, NOWAIT_LOCK))
		return 0;
	self->owner = me;
	self->depth = 1;
	return 1;
}

static void lock_take(Lock *self)
{
	if (lock_try(self))
		return;
	Py_BEGIN_ALLOW_THREADS
	PyThread_acquire_lock(self->lock, WAIT_LOCK);
	Py_END_ALLOW_THREADS
	self->owner = PyThread_get_thread_ident();
	self->depth = 1;
}

static void lock_let(Lock *self)
{
	if (--self->depth == 0)
		PyThread_release_lock(self->lock);
}

static PyObject *lock_enter(PyObject *self, PyObject *unused)
{
	lock_take((Lock *)self);
	Py_RETURN_NONE;
}

static PyObject *lock_exit(PyObject *self, PyObject *args)
{
	lock_let((Lock *)self);
	Py_RETURN_NONE;
}

static PyMethodDef lock_methods[] = {
	{"__enter__", lock_enter, METH_NOARGS, NULL},
	{"__exit__", lock_exit, METH_VARARGS, NULL},
	{0},
};

/* --- Pool: the slots of an output's generation -------------------------- */

typedef struct {
	PyObject_HEAD
	word *ring;
	uint8_t *pool;
	uint64_t entries; /* words */
	uint64_t slots, slot_size, keep;
	unsigned long long retired; /* all sequences up to here were */
	/* bytearrays, never resized, of a byte for each slot */
	PyObject *state;
	PyObject *mine; /* 1: the producer still has views of its own */
} Pool;

static PyObject *pool_bind(PyObject *o, PyObject *args)
{
	Pool *self = (Pool *)o;
	unsigned long long ring, pool, entries, slots, slot_size, keep;
	PyObject *state, *mine;
	if (!PyArg_ParseTuple(args, "KKKKKKYY", &ring, &pool, &entries, &slots, &slot_size, &keep, &state, &mine))
		return NULL;
	self->ring = (word *)(uintptr_t)ring;
	self->pool = (uint8_t *)(uintptr_t)pool;
	self->entries = entries / 8;
	self->slots = slots;
	self->slot_size = slot_size;
	self->keep = keep;
	replace(&self->state, state);
	replace(&self->mine, mine);
	Py_RETURN_NONE;
}

static void pool_dealloc(PyObject *o)
{
	Py_XDECREF(((Pool *)o)->state);
	Py_XDECREF(((Pool *)o)->mine);
	release(o);
}

static uint8_t *states(Pool *self) { return (uint8_t *)PyByteArray_AsString(self->state); }
static uint8_t *mine(Pool *self) { return (uint8_t *)PyByteArray_AsString(self->mine); }

static PyMethodDef pool_methods[] = {{"bind", pool_bind, METH_VARARGS, NULL}, {0}};
static PyMemberDef pool_members[] = {{"retired", T_ULONGLONG, offsetof(Pool, retired), 0, NULL}, {0}};

/* --- Link: one producer, at a reader ------------------------------------ */

typedef struct Pin Pin;

typedef struct {
	PyObject_HEAD
	word *page;
	int ordered;
	char inert; /* in a forked child: the page is the parent's */
	PyObject *generation;
	const word *ring; /* NULL: read in Python */
	uint8_t *pool;
	uint64_t entries; /* words */
	uint64_t slots, slot_size;
	Pin *pins[MAX_HELD]; /* by cell; not counted */
	struct recent {
		uint64_t entry[ENTRY_FIELDS];
		PyObject *generation;
	} recent[32];
	unsigned recent_at;
} Link;

struct Pin {
	PyObject_HEAD
	void *memory;
	Py_ssize_t size;
	/* of a reader */
	Link *link;
	PyObject *generation;
	int cell;
	uint64_t entry[ENTRY_FIELDS];
	/* of a producer */
	Pool *pool;
	uint64_t index;
	char published;
};

static void pin_dealloc(PyObject *o)
{
	Pin *self = (Pin *)o;
	if (self->link) {
		if (!self->link->inert)
			store(&self->link->page[PAGE_CELLS + self->cell], 0);
		self->link->pins[self->cell] = NULL;
		Py_DECREF(self->link);
	}
	if (self->pool) {
		mine(self->pool)[self->index] = 0;
		if (!self->published)
			states(self->pool)[self->index] = FREE;
		Py_DECREF(self->pool);
	}
	Py_XDECREF(self->generation);
	release(o);
}

static int pin_buffer(PyObject *o, Py_buffer *view, int flags)
{
	Pin *self = (Pin *)o;
	return PyBuffer_FillInfo(view, o, self->memory, self->size, self->link != NULL, flags);
}

static PyMemberDef pin_members[] = {{"published", T_BOOL, offsetof(Pin, published), 0, NULL}, {0}};

/* --- Bag, Frame, Slot: what _input.py and _output.py derive theirs from -- */

static PyObject *entry_tuple(const uint64_t *entry)
{
	PyObject *tuple = PyTuple_New(ENTRY_FIELDS);
	for (int i = 0; tuple && i < ENTRY_FIELDS; i++) {
		PyObject *item = PyLong_FromUnsignedLongLong(entry[i]);
		if (!item || PyTuple_SetItem(tuple, i, item) < 0)
			Py_CLEAR(tuple);
	}
	return tuple;
}

static int entry_words(PyObject *tuple, uint64_t *entry)
{
	for (int i = 0; i < ENTRY_FIELDS; i++) {
		PyObject *item = PyTuple_GetItem(tuple, i);
		if (!item)
			return -1;
		entry[i] = PyLong_AsUnsignedLongLongMask(item);
	}
	return PyErr_Occurred() ? -1 : 0;
}

typedef struct {
	PyObject_HEAD
	PyObject *link, *generation, *data, *frame;
	uint64_t entry[ENTRY_FIELDS];
} Bag;

/* Takes over data and frame, in every case; frame may be NULL. */
static PyObject *make_bag(PyTypeObject *type, PyObject *link, PyObject *generation, PyObject *data, PyObject *frame,
			  const uint64_t *entry)
{
	Bag *self = allocate(type);
	if (!self) {
		Py_DECREF(data);
		Py_XDECREF(frame);
		return NULL;
	}
	self->link = Py_NewRef(link);
	self->generation = Py_NewRef(generation);
	self->data = data;
	self->frame = frame;
	memcpy(self->entry, entry, sizeof self->entry);
	return (PyObject *)self;
}

static PyObject *bag_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *link, *generation, *tuple, *data;
	uint64_t entry[ENTRY_FIELDS];
	if (!PyArg_ParseTuple(args, "OOO!O", &link, &generation, &PyTuple_Type, &tuple, &data) ||
	    entry_words(tuple, entry) < 0)
		return NULL;
	return make_bag(type, link, generation, Py_NewRef(data), NULL, entry);
}

static void bag_dealloc(PyObject *o)
{
	Bag *self = (Bag *)o;
	Py_XDECREF(self->link);
	Py_XDECREF(self->generation);
	Py_XDECREF(self->data);
	Py_XDECREF(self->frame);
	release(o);
}

static PyObject *bag_entry(PyObject *self, void *unused) { return entry_tuple(((Bag *)self)->entry); }

static PyGetSetDef bag_properties[] = {{"_entry", bag_entry, NULL, NULL, NULL}, {0}};
static PyMemberDef bag_members[] = {
	{"_link", T_OBJECT, offsetof(Bag, link), READONLY, NULL},
	{"_generation", T_OBJECT, offsetof(Bag, generation), READONLY, NULL},
	{"data", T_OBJECT, offsetof(Bag, data), 0, NULL},
	{"frame", T_OBJECT, offsetof(Bag, frame), 0, NULL},
	{"sequence", T_ULONGLONG, offsetof(Bag, entry), READONLY, NULL},
	{"timestamp_ns", T_LONGLONG, offsetof(Bag, entry) + 8 * TIMESTAMP, READONLY, NULL},
	{0},
};

typedef struct {
	PyObject_HEAD
	PyObject *generation, *memory;
	uint64_t entry[ENTRY_FIELDS];
} Frame;

/* Takes over memory, in every case; NULL is an error that was raised already. */
static PyObject *make_frame(PyTypeObject *type, PyObject *generation, PyObject *memory, const uint64_t *entry)
{
	Frame *self = memory ? allocate(type) : NULL;
	if (!self) {
		Py_XDECREF(memory);
		return NULL;
	}
	self->generation = Py_NewRef(generation);
	self->memory = memory;
	memcpy(self->entry, entry, sizeof self->entry);
	return (PyObject *)self;
}

static PyObject *frame_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyObject *generation, *tuple, *memory;
	uint64_t entry[ENTRY_FIELDS];
	if (!PyArg_ParseTuple(args, "OO!O", &generation, &PyTuple_Type, &tuple, &memory) || entry_words(tuple, entry) < 0)
		return NULL;
	return make_frame(type, generation, Py_NewRef(memory), entry);
}

static void frame_dealloc(PyObject *o)
{
	Frame *self = (Frame *)o;
	Py_XDECREF(self->generation);
	Py_XDECREF(self->memory);
	release(o);
}

static PyObject *frame_entry(PyObject *self, void *unused) { return entry_tuple(((Frame *)self)->entry); }

static PyGetSetDef frame_properties[] = {{"_entry", frame_entry, NULL, NULL, NULL}, {0}};
static PyMemberDef frame_members[] = {
	{"_generation", T_OBJECT, offsetof(Frame, generation), READONLY, NULL},
	{"memory", T_OBJECT, offsetof(Frame, memory), READONLY, NULL},
	{"sequence", T_ULONGLONG, offsetof(Frame, entry), READONLY, NULL},
	{"timestamp_ns", T_LONGLONG, offsetof(Frame, entry) + 8 * TIMESTAMP, READONLY, NULL},
	{0},
};

/* A frame over memory that is pinned already. */
static PyObject *frame_of(Pin *pin)
{
	return make_frame(made_frame, pin->generation, PyMemoryView_FromObject((PyObject *)pin), pin->entry);
}

typedef struct {
	PyObject_HEAD
	PyObject *surface, *surface_id, *memory, *generation, *watched;
	unsigned long long number;
	long long index;
} Slot;

/* Takes over surface_id and memory, in every case; NULL is an error that was raised already. */
static PyObject *make_slot(PyTypeObject *type, PyObject *surface, uint64_t number, PyObject *surface_id,
			   PyObject *memory, PyObject *generation, int64_t index, PyObject *watched)
{
	Slot *self = surface_id && memory ? allocate(type) : NULL;
	if (!self) {
		Py_XDECREF(surface_id);
		Py_XDECREF(memory);
		return NULL;
	}
	self->surface = Py_NewRef(surface);
	self->surface_id = surface_id;
	self->memory = memory;
	self->generation = Py_NewRef(generation);
	self->watched = Py_NewRef(watched);
	self->number = number;
	self->index = index;
	return (PyObject *)self;
}

static PyObject *slot_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	unsigned long long number;
	long long index;
	PyObject *surface, *surface_id, *memory, *generation, *watched;
	if (!PyArg_ParseTuple(args, "OKOOOLO", &surface, &number, &surface_id, &memory, &generation, &index, &watched))
		return NULL;
	return make_slot(type, surface, number, Py_NewRef(surface_id), Py_NewRef(memory), generation, index, watched);
}

static void slot_dealloc(PyObject *o)
{
	Slot *self = (Slot *)o;
	Py_XDECREF(self->surface);
	Py_XDECREF(self->surface_id);
	Py_XDECREF(self->memory);
	Py_XDECREF(self->generation);
	Py_XDECREF(self->watched);
	release(o);
}

static PyMemberDef slot_members[] = {
	{"surface", T_OBJECT, offsetof(Slot, surface), READONLY, NULL},
	{"surface_id", T_OBJECT, offsetof(Slot, surface_id), READONLY, NULL},
	{"memory", T_OBJECT, offsetof(Slot, memory), READONLY, NULL},
	{"generation", T_OBJECT, offsetof(Slot, generation), READONLY, NULL},
	{"watched", T_OBJECT, offsetof(Slot, watched), READONLY, NULL},
	{"number", T_ULONGLONG, offsetof(Slot, number), READONLY, NULL},
	{"index", T_LONGLONG, offsetof(Slot, index), READONLY, NULL},
	{0},
};

/* --- reading ------------------------------------------------------------ */

static PyObject *link_bind(PyObject *o, PyObject *args)
{
	unsigned long long page;
	if (!PyArg_ParseTuple(args, "Kp", &page, &((Link *)o)->ordered))
		return NULL;
	((Link *)o)->page = (word *)(uintptr_t)page;
	Py_RETURN_NONE;
}

/* enter(generation, ring, pool, entries, slots, slot_size); without arguments: none. */
static PyObject *link_enter(PyObject *o, PyObject *args)
{
	Link *self = (Link *)o;
	PyObject *generation = NULL;
	unsigned long long ring = 0, pool = 0, entries = 0, slots = 0, slot_size = 0;
	if (!PyArg_ParseTuple(args, "|OKKKKK", &generation, &ring, &pool, &entries, &slots, &slot_size))
		return NULL;
	replace(&self->generation, generation);
	self->ring = (const word *)(uintptr_t)ring;
	self->pool = (uint8_t *)(uintptr_t)pool;
	self->entries = entries / 8;
	self->slots = slots;
	self->slot_size = slot_size;
	Py_RETURN_NONE;
}

/* recall(number): (generation, entry) of a picture whose bag was read lately. */
static PyObject *link_recall(PyObject *o, PyObject *number)
{
	Link *self = (Link *)o;
	uint64_t wanted = PyLong_AsUnsignedLongLong(number);
	if (PyErr_Occurred()) {
		PyErr_Clear(); /* no number of a picture */
		Py_RETURN_NONE;
	}
	for (int i = 0; i < 32; i++) {
		struct recent *recent = &self->recent[i];
		if (recent->generation && recent->entry[NUMBER] == wanted)
			return Py_BuildValue("ON", recent->generation, entry_tuple(recent->entry));
	}
	Py_RETURN_NONE;
}

/* held(number): a frame of a picture that is held. */
static PyObject *link_held(PyObject *o, PyObject *number)
{
	Link *self = (Link *)o;
	uint64_t wanted = PyLong_AsUnsignedLongLong(number);
	if (PyErr_Occurred())
		return NULL;
	for (int i = 0; i < MAX_HELD; i++)
		if (self->pins[i] && self->pins[i]->entry[NUMBER] == wanted)
			return frame_of(self->pins[i]);
	Py_RETURN_NONE;
}

static PyObject *link_forget(PyObject *o, PyObject *unused)
{
	for (int i = 0; i < 32; i++)
		Py_CLEAR(((Link *)o)->recent[i].generation);
	Py_RETURN_NONE;
}

static void link_dealloc(PyObject *o)
{
	Py_DECREF(link_forget(o, NULL));
	Py_XDECREF(((Link *)o)->generation);
	release(o);
}

static PyMethodDef link_methods[] = {
	{"bind", link_bind, METH_VARARGS, NULL}, {"enter", link_enter, METH_VARARGS, NULL},
	{"recall", link_recall, METH_O, NULL},	 {"pinned", link_held, METH_O, NULL},
	{"forget", link_forget, METH_NOARGS, NULL}, {0},
};
static PyMemberDef link_members[] = {
	{"inert", T_BOOL, offsetof(Link, inert), 0, NULL},
	{"generation", T_OBJECT, offsetof(Link, generation), READONLY, NULL},
	{0},
};

/* Whether the numbers of an entry that is not a plain small bag fit: _sensible(). */
static int sensible(const Link *self, const uint64_t *entry)
{
	uint64_t size = self->slot_size, slot = entry[SLOT], length = entry[LENGTH], pixels = entry[PIXELS];
	if (slot > self->slots || length > MAX_BAG || pixels > size || entry[PLANES] > 4)
		return 0;
	if (!slot && (length > MAX_INLINE || pixels))
		return 0;
	if (length > MAX_INLINE && (entry[BAG_AT] > size || entry[BAG_AT] + length > size))
		return 0;
	if (entry[WIDTH] > 0x7fffffff || entry[HEIGHT] > 0x7fffffff || (entry[RESIDENCY] && !pixels))
		return 0;
	for (uint64_t i = 0; slot && i < 2 * entry[PLANES]; i++)
		if (entry[PLANE + i] > pixels)
			return 0;
	return 1;
}

static void count(Link *self, const uint64_t *entry)
{
	word *page = self->page;
	uint64_t skipped = entry[0] - page[PAGE_CURSOR] - 1;
	if (skipped)
		store(&page[PAGE_DROPPED], page[PAGE_DROPPED] + skipped);
	store(&page[PAGE_RECEIVED], page[PAGE_RECEIVED] + 1);
	store(&page[PAGE_CURSOR], entry[0]);
	if (entry[RESIDENCY]) {
		struct recent *recent = &self->recent[self->recent_at++ % 32];
		memcpy(recent->entry, entry, sizeof recent->entry);
		replace(&recent->generation, self->generation);
	}
	uint64_t read = now(), micro = 0;
	store(&page[PAGE_LAST_READ], read);
	store(&page[PAGE_TIMESTAMP], entry[TIMESTAMP]);
	int64_t late = (int64_t)(read - entry[TIMESTAMP]);
	if (late > 0)
		micro = (uint64_t)late >> 10;
	uint64_t counter = micro;
	if (micro >= 4) {
		unsigned octave = 63 - (unsigned)__builtin_clzll(micro);
		counter = 4 * (octave - 1) + (micro >> (octave - 2) & 3);
	}
	if (counter >= HISTOGRAM_SIZE)
		counter = HISTOGRAM_SIZE - 1;
	store(&page[PAGE_HISTOGRAM + counter], page[PAGE_HISTOGRAM + counter] + 1);
}

/*
 * Claims the slot of an entry, and pins it: the view of its pixels in *frame.
 * 1: done, 0: the slot is another's by now, -1: an error, 2: for Python to do.
 */
static int claim(Link *self, const uint64_t *entry, PyObject **frame)
{
	word *cell = &self->page[PAGE_CELLS];
	int at = 0;
	while (at < MAX_HELD && cell[at])
		at++;
	if (at == MAX_HELD)
		return 2;
	store(&cell[at], entry[SLOT]);
	fence();
	int ours = load(&self->ring[RING_STAMPS + entry[SLOT] - 1]) == entry[0];
	Pin *pin = ours ? allocate(pin_type) : NULL;
	if (!pin) {
		store(&cell[at], 0);
		return ours ? -1 : 0;
	}
	pin->memory = self->pool + (entry[SLOT] - 1) * self->slot_size;
	pin->size = (Py_ssize_t)entry[PIXELS];
	pin->link = (Link *)Py_NewRef((PyObject *)self);
	pin->generation = Py_NewRef(self->generation);
	pin->cell = at;
	memcpy(pin->entry, entry, sizeof pin->entry);
	self->pins[at] = pin;
	*frame = frame_of(pin);
	Py_DECREF(pin); /* its views have it */
	return *frame ? 1 : -1;
}

/*
 * Takes the next bag of a link: 1 with a bag, 0 without one, -1 on an error,
 * 2 when it is for Python to do. The lock of the waiter is held.
 */
static int take(Link *self, int hold, PyObject **result)
{
	const word *ring = self->ring;
	if (!ring || load(&ring[RING_MOVED]))
		return 2;
	word *page = self->page;
	for (int look = 0; look < 2; look++) {
		uint64_t sequence = load(&ring[RING_NEWEST]), last = page[PAGE_CURSOR];
		if (sequence <= last)
			return 0;
		if (self->ordered) {
			if (sequence - last > WINDOW) {
				store(&page[PAGE_DROPPED], page[PAGE_DROPPED] + sequence - last - WINDOW);
				store(&page[PAGE_CURSOR], last = sequence - WINDOW);
			}
			sequence = last + 1;
		}
		const word *at = ring + self->entries + sequence % ENTRY_COUNT * ENTRY_WORDS;
		uint64_t entry[ENTRY_FIELDS];
		if ((entry[0] = load(&at[0])) != sequence)
			continue;
		for (int i = 1; i < ENTRY_FIELDS; i++)
			entry[i] = atomic_load_explicit(&at[i], memory_order_relaxed);
		uint64_t length = entry[LENGTH];
		if (length > MAX_INLINE)
			return 2; /* stands in a slot, or is torn */
		PyObject *data = PyBytes_FromStringAndSize((const char *)(at + ENTRY_BAG), (Py_ssize_t)length);
		if (!data)
			return -1;
		atomic_thread_fence(memory_order_acquire);
		PyObject *frame = NULL;
		int whole = load(&at[0]) == sequence;
		if (whole && (entry[SLOT] || entry[PIXELS] || entry[RESIDENCY])) {
			if (!sensible(self, entry))
				whole = 2;
			else if (entry[SLOT] && hold && entry[RESIDENCY])
				whole = claim(self, entry, &frame);
		}
		if (whole != 1) {
			Py_DECREF(data);
			if (whole == 0)
				continue;
			return whole;
		}
		*result = make_bag(made_bag, (PyObject *)self, self->generation, data, frame, entry);
		if (!*result)
			return -1;
		count(self, entry);
		return 1;
	}
	return 2;
}

/* Inbox: the links of an input, which take turns. What Input is derived from. */
typedef struct {
	PyObject_HEAD
	Lock *lock;
	PyObject *links; /* the list of the Input */
	Py_ssize_t next;
	char ending; /* links that have ended are read to their last bag */
} Inbox;

static PyObject *inbox_bind(PyObject *o, PyObject *args)
{
	Inbox *self = (Inbox *)o;
	PyObject *lock, *links;
	if (!PyArg_ParseTuple(args, "O!O!", lock_type, &lock, &PyList_Type, &links))
		return NULL;
	replace((PyObject **)&self->lock, lock);
	replace(&self->links, links);
	Py_RETURN_NONE;
}

static void inbox_dealloc(PyObject *o)
{
	Py_XDECREF((PyObject *)((Inbox *)o)->lock);
	Py_XDECREF(((Inbox *)o)->links);
	release(o);
}

/* read(*, hold=False, link=None): a bag, or None. */
static PyObject *inbox_read(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	Inbox *self = (Inbox *)o;
	PyObject *hold = Py_False, *name = Py_None;
	if (n) {
		PyErr_SetString(PyExc_TypeError, "read() takes hold= and link=");
		return NULL;
	}
	for (Py_ssize_t i = 0; names && i < PyTuple_Size(names); i++) {
		PyObject *key = PyTuple_GetItem(names, i);
		if (PyUnicode_CompareWithASCIIString(key, "hold") == 0)
			hold = args[i];
		else if (PyUnicode_CompareWithASCIIString(key, "link") == 0)
			name = args[i];
		else
			return PyErr_Format(PyExc_TypeError, "read() takes hold= and link=, not %U=", key);
	}
	int got = 2;
	PyObject *bag = NULL;
	if (name == Py_None && lock_try(self->lock)) {
		Py_ssize_t links = PyList_Size(self->links);
		got = 0;
		for (Py_ssize_t step = 0; step < links && !got; step++) {
			Py_ssize_t at = (self->next + step) % links;
			Link *link = (Link *)Py_NewRef(PyList_GetItem(self->links, at));
			got = take(link, hold == Py_True, &bag);
			Py_DECREF(link);
			if (got == 1)
				self->next = at + 1;
		}
		if (!got && self->ending)
			got = 2;
		lock_let(self->lock);
	}
	if (got == 2)
		return PyObject_CallMethod(o, "_read", "OO", hold, name);
	if (got)
		return bag;
	Py_RETURN_NONE;
}

static PyMethodDef inbox_methods[] = {
	{"bind", inbox_bind, METH_VARARGS, NULL},
	{"read", (PyCFunction)(void (*)(void))inbox_read, METH_FASTCALL | METH_KEYWORDS, NULL},
	{0},
};
static PyMemberDef inbox_members[] = {
	{"next", T_PYSSIZET, offsetof(Inbox, next), 0, NULL},
	{"ending", T_BOOL, offsetof(Inbox, ending), 0, NULL},
	{0},
};

/* --- waiting ------------------------------------------------------------ */

enum { MAX_POLLED = 64 };

/* Bell: what the inputs of a process wait on together. What Waiter is derived from. */
typedef struct {
	PyObject_HEAD
	Lock *lock;
	PyObject *links; /* the list of the Waiter */
	unsigned long long token, before;
	struct pollfd polled[MAX_POLLED]; /* the wake-up first */
	int count;			  /* 0: wait in Python */
	unsigned changes;
	unsigned miss, skip;
} Bell;

static PyObject *bell_bind(PyObject *o, PyObject *args)
{
	Bell *self = (Bell *)o;
	PyObject *lock, *links;
	if (!PyArg_ParseTuple(args, "O!O!", lock_type, &lock, &PyList_Type, &links))
		return NULL;
	replace((PyObject **)&self->lock, lock);
	replace(&self->links, links);
	Py_RETURN_NONE;
}

static void bell_dealloc(PyObject *o)
{
	Py_XDECREF((PyObject *)((Bell *)o)->lock);
	Py_XDECREF(((Bell *)o)->links);
	release(o);
}

/* arm(fds): what to poll; none: nothing is known to be right. */
static PyObject *bell_arm(PyObject *o, PyObject *fds)
{
	Bell *self = (Bell *)o;
	Py_ssize_t n = PyList_Size(fds);
	if (n < 0)
		return NULL;
	self->changes++;
	self->count = 0;
	if (n > MAX_POLLED)
		Py_RETURN_NONE;
	for (Py_ssize_t i = 0; i < n; i++) {
		long fd = PyLong_AsLong(PyList_GetItem(fds, i));
		if (fd == -1 && PyErr_Occurred())
			return NULL;
		self->polled[i] = (struct pollfd){.fd = (int)fd, .events = POLLIN};
	}
	self->count = (int)n;
	Py_RETURN_NONE;
}

/* How many bags all links have brought, or -1 when Python has to look. */
static int64_t arrived(Bell *self, int64_t *unread)
{
	int64_t sum = (int64_t)self->before;
	*unread = 0;
	Py_ssize_t links = PyList_Size(self->links);
	for (Py_ssize_t i = 0; i < links; i++) {
		Link *link = (Link *)PyList_GetItem(self->links, i);
		if (!link->ring)
			continue; /* its socket brings the first generation */
		if (load(&link->ring[RING_MOVED]))
			return -1;
		uint64_t newest = load(&link->ring[RING_NEWEST]), last = link->page[PAGE_CURSOR];
		if (newest > last)
			*unread += (int64_t)(newest - last);
		else
			newest = last;
		sum += (int64_t)(newest - link->page[PAGE_START]);
	}
	return sum;
}

/* arrived(): a number that grows with every bag that arrives at any input. */
static PyObject *bell_arrived(PyObject *o, PyObject *unused)
{
	Bell *self = (Bell *)o;
	int64_t unread, sum = -1;
	if (self->count && lock_try(self->lock)) {
		sum = arrived(self, &unread);
		lock_let(self->lock);
	}
	return sum < 0 ? PyObject_CallMethod(o, "_arrived", NULL) : PyLong_FromLongLong(sum);
}

/* has_data(): whether any input has a bag. */
static PyObject *bell_has_data(PyObject *o, PyObject *unused)
{
	Bell *self = (Bell *)o;
	int64_t unread, sum = -1;
	if (self->count && lock_try(self->lock)) {
		sum = arrived(self, &unread);
		lock_let(self->lock);
	}
	return sum < 0 ? PyObject_CallMethod(o, "_has_data", NULL) : PyBool_FromLong(unread > 0);
}

static void waiting(Bell *self, uint64_t token)
{
	Py_ssize_t links = PyList_Size(self->links);
	for (Py_ssize_t i = 0; i < links; i++)
		store(&((Link *)PyList_GetItem(self->links, i))->page[PAGE_WAITING], token);
}

/* 1: there is news, 0: none, -1: Python has to look. */
static int news(Bell *self, int64_t seen)
{
	int64_t unread, sum = arrived(self, &unread);
	return sum < 0 ? -1 : seen < 0 ? unread > 0 : sum > seen;
}

/*
 * Where bags come faster than a process can be put to sleep and woken, looking
 * a while longer is cheaper for both ends. Every look in vain makes the next
 * one rarer, so that a camera's reader hardly ever looks.
 */
enum { LOOK_NS = 15000, MAX_SKIP = 255 };

static int look_around(Bell *self, int64_t seen)
{
	if (self->skip) {
		self->skip--;
		return 0;
	}
	uint64_t end = now() + LOOK_NS;
	do {
		for (int i = 0; i < 16; i++) {
			int found = news(self, seen);
			if (found) {
				self->miss = 0;
				return found;
			}
#if defined(__x86_64__)
			__builtin_ia32_pause();
#elif defined(__aarch64__)
			__asm__ volatile("yield");
#endif
		}
	} while (now() < end);
	self->miss = self->miss ? self->miss * 2 : 1;
	if (self->miss > MAX_SKIP)
		self->miss = MAX_SKIP;
	self->skip = self->miss;
	return 0;
}

/* The milliseconds of a time-out in seconds, rounded up; -1: none, -2: an error. */
static int milliseconds(PyObject *seconds)
{
	if (seconds == Py_None)
		return -1;
	double left = 1e3 * PyFloat_AsDouble(seconds);
	if (PyErr_Occurred())
		return -2;
	if (!(left > 0))
		return 0;
	if (left >= 0x7fffffff)
		return 0x7fffffff;
	int whole = (int)left;
	return whole < left ? whole + 1 : whole;
}

/* wait(timeout=None, *, seen=None) */
static PyObject *bell_wait(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	Bell *self = (Bell *)o;
	PyObject *seconds = n > 0 ? args[0] : Py_None, *arrivals = Py_None;
	for (Py_ssize_t i = 0; names && i < PyTuple_Size(names); i++) {
		PyObject *key = PyTuple_GetItem(names, i);
		if (PyUnicode_CompareWithASCIIString(key, "seen") == 0)
			arrivals = args[n + i];
		else if (n == 0 && PyUnicode_CompareWithASCIIString(key, "timeout") == 0)
			seconds = args[i];
		else
			return PyErr_Format(PyExc_TypeError, "wait() takes timeout= and seen=, not %U=", key);
	}
	int timeout = milliseconds(seconds);
	int64_t seen = arrivals == Py_None ? -1 : PyLong_AsLongLong(arrivals);
	if (n > 1)
		PyErr_SetString(PyExc_TypeError, "wait() takes a timeout, and seen=");
	if (PyErr_Occurred())
		return NULL;
	if (!self->count || !lock_try(self->lock))
		return PyObject_CallMethod(o, "_wait", "OO", seconds, arrivals);
	int found = look_around(self, seen);
	if (!found) {
		waiting(self, ++self->token);
		fence();
		found = news(self, seen);
		if (found)
			waiting(self, 0);
	}
	unsigned changes = self->changes;
	struct pollfd polled[MAX_POLLED];
	int fds = self->count;
	memcpy(polled, self->polled, sizeof *polled * (size_t)fds);
	lock_let(self->lock);
	if (found < 0)
		return PyObject_CallMethod(o, "_wait", "OO", seconds, arrivals);
	if (found)
		Py_RETURN_NONE;

	int ready, error;
	Py_BEGIN_ALLOW_THREADS
	ready = poll(polled, (nfds_t)fds, timeout);
	error = errno;
	Py_END_ALLOW_THREADS
	lock_take(self->lock);
	int other = self->changes != changes; /* links came or went */
	if (!other) {
		waiting(self, 0);
		if (ready > 0 && polled[0].revents) {
			uint64_t rung;
			(void)!read(polled[0].fd, &rung, sizeof rung);
			ready--;
		}
		other = ready > 0; /* sockets have something */
	}
	lock_let(self->lock);
	if (ready < 0 && error == EINTR && PyErr_CheckSignals() < 0)
		return NULL;
	if (other)
		return PyObject_CallMethod(o, "_look_after", NULL);
	Py_RETURN_NONE;
}

static PyMethodDef bell_methods[] = {
	{"bind", bell_bind, METH_VARARGS, NULL},
	{"arm", bell_arm, METH_O, NULL},
	{"arrived", bell_arrived, METH_NOARGS, NULL},
	{"has_data", bell_has_data, METH_NOARGS, NULL},
	{"wait", (PyCFunction)(void (*)(void))bell_wait, METH_FASTCALL | METH_KEYWORDS, NULL},
	{0},
};
static PyMemberDef bell_members[] = {
	{"token", T_ULONGLONG, offsetof(Bell, token), 0, NULL},
	{"before", T_ULONGLONG, offsetof(Bell, before), 0, NULL},
	{0},
};

/* --- publishing --------------------------------------------------------- */

/* Peer: one reader, at a producer. */
typedef struct {
	PyObject_HEAD
	const word *page;
	int wake;
	char ordered;
	unsigned long long woken;
} Peer;

static PyObject *peer_bind(PyObject *o, PyObject *args)
{
	unsigned long long page;
	if (!PyArg_ParseTuple(args, "K", &page))
		return NULL;
	((Peer *)o)->page = (const word *)(uintptr_t)page;
	Py_RETURN_NONE;
}

static void peer_dealloc(PyObject *o) { release(o); }

static PyMethodDef peer_methods[] = {{"bind", peer_bind, METH_VARARGS, NULL}, {0}};
static PyMemberDef peer_members[] = {
	{"wake", T_INT, offsetof(Peer, wake), 0, NULL},
	{"ordered", T_BOOL, offsetof(Peer, ordered), 0, NULL},
	{"woken", T_ULONGLONG, offsetof(Peer, woken), 0, NULL},
	{0},
};

enum { MAX_VARIANTS = 8 };

/* Writer: what an output publishes to. What Output is derived from. */
typedef struct {
	PyObject_HEAD
	Lock *lock;
	char owner[MAX_OWNER];
	Py_ssize_t owner_size;
	unsigned long long sequence, number;
	struct variant {
		Pool *pool;
		PyObject *peers; /* the list of the variant */
		uint64_t format;
	} variants[MAX_VARIANTS];
	int count;
	char open; /* 0: publish in Python */
	/* The kind of picture published last. */
	PyObject *surface;
	uint64_t size;
	uint64_t description[ENTRY_FIELDS - RESIDENCY];
} Writer;

/* bind(lock, owner, number): number is that of the last picture. */
static PyObject *writer_bind(PyObject *o, PyObject *args)
{
	Writer *self = (Writer *)o;
	PyObject *lock;
	const char *owner;
	Py_ssize_t size;
	if (!PyArg_ParseTuple(args, "O!s#K", lock_type, &lock, &owner, &size, &self->number))
		return NULL;
	if (size > MAX_OWNER)
		return PyErr_Format(PyExc_ValueError, "an address of %zd bytes", size);
	replace((PyObject **)&self->lock, lock);
	memcpy(self->owner, owner, (size_t)size);
	self->owner_size = size;
	Py_RETURN_NONE;
}

static void writer_clear(Writer *self)
{
	for (; self->count; self->count--) {
		Py_CLEAR(self->variants[self->count - 1].pool);
		Py_CLEAR(self->variants[self->count - 1].peers);
	}
	self->open = 0;
}

static void writer_dealloc(PyObject *o)
{
	Writer *self = (Writer *)o;
	writer_clear(self);
	Py_XDECREF((PyObject *)self->lock);
	Py_XDECREF(self->surface);
	release(o);
}

/* serve([(generation, format, peers)]): to whom from now on; None: all in Python. */
static PyObject *writer_serve(PyObject *o, PyObject *variants)
{
	Writer *self = (Writer *)o;
	writer_clear(self);
	if (variants == Py_None || PyList_Size(variants) > MAX_VARIANTS)
		Py_RETURN_NONE;
	for (Py_ssize_t i = 0; i < PyList_Size(variants); i++) {
		PyObject *pool, *peers;
		unsigned long long format;
		if (!PyArg_ParseTuple(PyList_GetItem(variants, i), "O!KO!", pool_type, &pool, &format, &PyList_Type, &peers))
			return NULL;
		self->variants[i].pool = (Pool *)Py_NewRef(pool);
		self->variants[i].peers = Py_NewRef(peers);
		self->variants[i].format = format;
		self->count++;
	}
	self->open = 1;
	Py_RETURN_NONE;
}

/* describe(surface, size, words): the kind of picture that is made from now on. */
static PyObject *writer_describe(PyObject *o, PyObject *args)
{
	Writer *self = (Writer *)o;
	PyObject *surface, *words;
	unsigned long long size;
	if (!PyArg_ParseTuple(args, "OKO!", &surface, &size, &PyTuple_Type, &words))
		return NULL;
	Py_CLEAR(self->surface);
	for (int i = 0; i < ENTRY_FIELDS - RESIDENCY; i++) {
		PyObject *item = PyTuple_GetItem(words, i);
		if (!item)
			return NULL;
		self->description[i] = PyLong_AsUnsignedLongLongMask(item);
	}
	if (PyErr_Occurred())
		return NULL;
	self->size = size;
	self->surface = Py_NewRef(surface);
	Py_RETURN_NONE;
}

/* A slot that nobody reads and that was used before, or -1. */
static int64_t free_slot(Pool *pool, PyObject *peers)
{
	uint8_t *state = states(pool), *kept = mine(pool);
	uint64_t touched = pool->ring[RING_TOUCHED];
	uint8_t *found = memchr(state, FREE, touched);
	if (!found && memchr(state, RETIRED, touched)) {
		/* Their stamps were taken back before a fence passed since. */
		uint8_t claimed[1 << 16 >> 3];
		memset(claimed, 0, touched / 8 + 1);
		Py_ssize_t links = PyList_Size(peers);
		for (Py_ssize_t i = 0; i < links; i++) {
			const word *page = ((Peer *)PyList_GetItem(peers, i))->page;
			for (int cell = PAGE_CELLS; cell < PAGE_CELLS + MAX_HELD; cell++) {
				uint64_t slot = load(&page[cell]) - 1;
				if (slot < touched)
					claimed[slot >> 3] |= (uint8_t)(1 << (slot & 7));
			}
		}
		for (uint64_t slot = 0; slot < touched; slot++)
			if (state[slot] == RETIRED && !kept[slot] && !(claimed[slot >> 3] >> (slot & 7) & 1))
				state[slot] = FREE;
		found = memchr(state, FREE, touched);
	}
	return found ? found - state : -1;
}

/* The name of a picture: OWNER#NUMBER. */
static PyObject *surface_id(const Writer *self, uint64_t number)
{
	char text[MAX_OWNER + 1 + 20];
	char digits[20];
	size_t size = (size_t)self->owner_size, count = 0;
	memcpy(text, self->owner, size);
	text[size++] = '#';
	do
		digits[count++] = (char)('0' + number % 10);
	while (number /= 10);
	while (count)
		text[size++] = digits[--count];
	return PyUnicode_FromStringAndSize(text, (Py_ssize_t)size);
}

/* The variant of the kind of picture that is made, or NULL. */
static struct variant *described(Writer *self)
{
	for (int i = 0; i < self->count; i++)
		if (self->variants[i].format == self->description[FORMAT - RESIDENCY])
			return &self->variants[i];
	return NULL;
}

/* acquire(surface, like=None): a Slot. */
static PyObject *writer_acquire(PyObject *o, PyObject *const *args, Py_ssize_t n)
{
	Writer *self = (Writer *)o;
	if (n < 1 || n > 2) {
		PyErr_SetString(PyExc_TypeError, "acquire() takes a surface, and perhaps a slot of the same picture");
		return NULL;
	}
	PyObject *surface = args[0];
	if (n == 2)
		return PyObject_CallMethod(o, "_acquire", "OO", surface, args[1]);
	int same = surface == self->surface;
	if (!same && self->surface && (same = PyObject_RichCompareBool(surface, self->surface, Py_EQ)) < 0)
		return NULL;
	PyObject *slot = NULL;
	if (same && self->open && lock_try(self->lock)) {
		struct variant *variant = described(self);
		int64_t index = -1;
		if (variant && variant->pool->slot_size >= self->size)
			index = free_slot(variant->pool, variant->peers);
		Pin *pin = index < 0 ? NULL : allocate(pin_type);
		if (pin) {
			Pool *pool = variant->pool;
			states(pool)[index] = BUSY;
			mine(pool)[index] = 1;
			pin->pool = (Pool *)Py_NewRef((PyObject *)pool);
			pin->index = (uint64_t)index;
			pin->memory = pool->pool + (uint64_t)index * pool->slot_size;
			pin->size = (Py_ssize_t)self->size;
			uint64_t number = ++self->number;
			slot = make_slot(made_slot, self->surface, number, surface_id(self, number),
					 PyMemoryView_FromObject((PyObject *)pin), (PyObject *)pool, index, (PyObject *)pin);
			Py_DECREF(pin);
		}
		lock_let(self->lock);
	}
	if (!slot && !PyErr_Occurred())
		return PyObject_CallMethod(o, "_acquire", "(O)", surface);
	return slot;
}

/* Takes back the stamps of what nobody is owed after the sequence. */
static void retire(Pool *pool, PyObject *peers, uint64_t sequence)
{
	if (sequence <= pool->keep || sequence - pool->keep <= pool->retired)
		return;
	uint64_t limit = sequence - pool->keep;
	Py_ssize_t links = PyList_Size(peers);
	for (Py_ssize_t i = 0; i < links; i++) {
		Peer *peer = (Peer *)PyList_GetItem(peers, i);
		if (!peer->ordered)
			continue;
		uint64_t owed = load(&peer->page[PAGE_CURSOR]);
		if (owed + WINDOW + MARGIN < sequence)
			owed = sequence - WINDOW - MARGIN;
		if (owed < limit)
			limit = owed;
	}
	uint8_t *state = states(pool);
	for (uint64_t n = pool->retired + 1; n <= limit; n++) {
		uint64_t slot = pool->ring[pool->entries + n % ENTRY_COUNT * ENTRY_WORDS + SLOT];
		if (slot) {
			store(&pool->ring[RING_STAMPS + slot - 1], 0);
			state[slot - 1] = RETIRED;
		}
		pool->retired = n;
	}
}

static void publish_in(Pool *pool, uint64_t sequence, const char *bag, uint64_t size, uint64_t timestamp,
		       const Slot *slot, const Writer *self)
{
	word *at = pool->ring + pool->entries + sequence % ENTRY_COUNT * ENTRY_WORDS;
	store(&at[0], 0);
	atomic_thread_fence(memory_order_release);
	uint64_t fields[ENTRY_FIELDS] = {
		[SLOT] = slot ? (uint64_t)slot->index + 1 : 0,
		[LENGTH] = size,
		[TIMESTAMP] = timestamp,
		[PIXELS] = slot ? self->size : 0,
		[NUMBER] = slot ? slot->number : 0,
	};
	if (slot)
		memcpy(&fields[RESIDENCY], self->description, sizeof self->description);
	for (int i = 1; i < ENTRY_FIELDS; i++)
		atomic_store_explicit(&at[i], fields[i], memory_order_relaxed);
	memcpy((char *)(at + ENTRY_BAG), bag, size);
	store(&at[0], sequence);
	if (slot)
		store(&pool->ring[RING_STAMPS + slot->index], sequence);
	store(&pool->ring[RING_NEWEST], sequence);
	store(&pool->ring[RING_TIMESTAMP], timestamp);
}

static void wake(PyObject *peers)
{
	Py_ssize_t links = PyList_Size(peers);
	for (Py_ssize_t i = 0; i < links; i++) {
		Peer *peer = (Peer *)PyList_GetItem(peers, i);
		uint64_t token = load(&peer->page[PAGE_WAITING]);
		if (token && token != peer->woken) {
			peer->woken = token;
			uint64_t one = 1;
			(void)!write(peer->wake, &one, sizeof one); /* full: it rings already */
		}
	}
}

/* Publishes if it is an ordinary case: the sequence, 0 if it is not. */
static uint64_t publish(Writer *self, PyObject *bag, uint64_t timestamp, PyObject *picture)
{
	uint64_t size = (uint64_t)PyBytes_Size(bag);
	Slot *slot = picture == Py_None ? NULL : (Slot *)picture;
	if (!self->open || size > MAX_INLINE)
		return 0;
	if (slot && (!PyObject_TypeCheck(picture, slot_type) || slot->surface != self->surface ||
		     !PyObject_TypeCheck(slot->watched, pin_type) || ((Pin *)slot->watched)->published))
		return 0;
	if (!lock_try(self->lock))
		return 0;
	uint64_t sequence = 0;
	struct variant *in = slot ? described(self) : NULL;
	if (self->open && (!slot || (in && slot->generation == (PyObject *)in->pool))) {
		sequence = ++self->sequence;
		if (slot)
			((Pin *)slot->watched)->published = 1;
		for (int i = 0; i < self->count; i++) {
			struct variant *variant = &self->variants[i];
			publish_in(variant->pool, sequence, PyBytes_AsString(bag), size, timestamp, variant == in ? slot : NULL, self);
			retire(variant->pool, variant->peers, sequence);
		}
		fence();
		for (int i = 0; i < self->count; i++)
			wake(self->variants[i].peers);
	}
	lock_let(self->lock);
	return sequence;
}

/* publish(bag, timestamp_ns, slot=None, *more): the sequence. */
static PyObject *writer_publish(PyObject *o, PyObject *const *args, Py_ssize_t n)
{
	Writer *self = (Writer *)o;
	if (n < 2) {
		PyErr_SetString(PyExc_TypeError, "publish() takes a bag, a timestamp and perhaps slots");
		return NULL;
	}
	PyObject *slot = n > 2 ? args[2] : Py_None;
	uint64_t sequence = 0;
	if (n <= 3 && PyBytes_Check(args[0]) && PyLong_Check(args[1])) {
		uint64_t timestamp = PyLong_AsUnsignedLongLongMask(args[1]);
		if (PyErr_Occurred())
			return NULL;
		sequence = publish(self, args[0], timestamp, slot);
	}
	PyObject *done;
	if (n > 3) {
		PyObject *method = PyObject_GetAttrString(o, "_publish"), *all = method ? PyTuple_New(n) : NULL;
		for (Py_ssize_t i = 0; all && i < n; i++)
			PyTuple_SetItem(all, i, Py_NewRef(args[i]));
		done = all ? PyObject_CallObject(method, all) : NULL;
		Py_XDECREF(all);
		Py_XDECREF(method);
		return done;
	}
	if (!sequence)
		return PyObject_CallMethod(o, "_publish", "OOO", args[0], args[1], slot);
	if (slot != Py_None && self->description[0] == OWNER_RESIDENT) {
		if (!(done = PyObject_CallMethod(o, "_keep", "(O)", slot)))
			return NULL;
		Py_DECREF(done);
	}
	return PyLong_FromUnsignedLongLong(sequence);
}

static PyMethodDef writer_methods[] = {
	{"bind", writer_bind, METH_VARARGS, NULL},
	{"serve", writer_serve, METH_O, NULL},
	{"describe", writer_describe, METH_VARARGS, NULL},
	{"acquire", (PyCFunction)(void (*)(void))writer_acquire, METH_FASTCALL, NULL},
	{"publish", (PyCFunction)(void (*)(void))writer_publish, METH_FASTCALL, NULL},
	{0},
};
static PyMemberDef writer_members[] = {
	{"sequence", T_ULONGLONG, offsetof(Writer, sequence), 0, NULL},
	{"number", T_ULONGLONG, offsetof(Writer, number), 0, NULL},
	{0},
};

/* --- small bags as msgpack ----------------------------------------------- */

/*
 * Maps from strings to strings, 64-bit numbers, booleans and nil, of at most
 * MAX_INLINE bytes. All others are answered NotImplemented: _msgpack.py does
 * them, and words what is wrong with them.
 */

static void put(uint8_t **at, unsigned first, uint64_t number, size_t bytes)
{
	*(*at)++ = (uint8_t)first;
	number = htobe64(number);
	memcpy(*at, (uint8_t *)&number + 8 - bytes, bytes);
	*at += bytes;
}

static uint64_t get(const uint8_t *at, size_t bytes)
{
	uint64_t number = 0;
	memcpy((uint8_t *)&number + 8 - bytes, at, bytes);
	return be64toh(number);
}

static int put_text(uint8_t **at, const uint8_t *end, PyObject *text)
{
	Py_ssize_t size;
	const char *data = PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
	if (!data || end - *at < size + 3)
		return 0;
	if (size < 32)
		*(*at)++ = (uint8_t)(0xA0 | size);
	else if (size < 256)
		put(at, 0xD9, (uint64_t)size, 1);
	else
		put(at, 0xDA, (uint64_t)size, 2);
	memcpy(*at, data, (size_t)size);
	*at += size;
	return 1;
}

static int put_int(uint8_t **at, PyObject *value)
{
	int overflow;
	int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
	if (overflow > 0) {
		uint64_t large = PyLong_AsUnsignedLongLong(value);
		if (PyErr_Occurred())
			return 0;
		put(at, 0xCF, large, 8);
		return 1;
	}
	if (overflow)
		return 0;
	if (number >= -32 && number < 128)
		*(*at)++ = (uint8_t)number;
	else if (number >= 0) {
		int step = number > 0xff ? number > 0xffff ? number > 0xffffffff ? 3 : 2 : 1 : 0;
		put(at, 0xCC + (unsigned)step, (uint64_t)number, (size_t)1 << step);
	} else {
		int step = number < INT8_MIN ? number < INT16_MIN ? number < INT32_MIN ? 3 : 2 : 1 : 0;
		put(at, 0xD0 + (unsigned)step, (uint64_t)number, (size_t)1 << step);
	}
	return 1;
}

static PyObject *encode(PyObject *module, PyObject *bag)
{
	uint8_t buffer[MAX_INLINE], *at = buffer, *end = buffer + sizeof buffer;
	if (!PyDict_CheckExact(bag) || PyDict_Size(bag) > 0xffff)
		Py_RETURN_NOTIMPLEMENTED;
	Py_ssize_t count = PyDict_Size(bag), next = 0;
	if (count < 16)
		*at++ = (uint8_t)(0x80 | count);
	else
		put(&at, 0xDE, (uint64_t)count, 2);
	PyObject *key, *value;
	while (PyDict_Next(bag, &next, &key, &value)) {
		int done = put_text(&at, end, key) && end - at >= 9;
		if (!done)
			;
		else if (PyLong_CheckExact(value))
			done = put_int(&at, value);
		else if (PyUnicode_CheckExact(value))
			done = put_text(&at, end, value);
		else if (PyFloat_CheckExact(value)) {
			double number = PyFloat_AsDouble(value);
			uint64_t bits;
			memcpy(&bits, &number, sizeof bits);
			put(&at, 0xCB, bits, 8);
		} else if (value == Py_None || value == Py_True || value == Py_False)
			*at++ = value == Py_None ? 0xC0 : value == Py_True ? 0xC3 : 0xC2;
		else
			done = 0;
		if (!done) {
			PyErr_Clear();
			Py_RETURN_NOTIMPLEMENTED;
		}
	}
	return PyBytes_FromStringAndSize((char *)buffer, at - buffer);
}

/* The value at *at, or NULL: with an error, or without one if it is none of these. */
static PyObject *value_at(const uint8_t **at, const uint8_t *end)
{
	if (*at == end)
		return NULL;
	unsigned first = *(*at)++;
	if (first < 0x80 || first >= 0xE0)
		return PyLong_FromLong((int8_t)first);
	if (first == 0xC0)
		Py_RETURN_NONE;
	if (first == 0xC2 || first == 0xC3)
		return PyBool_FromLong(first == 0xC3);
	/* What the first byte is followed by: a number, or the length of a text. */
	size_t bytes = first >= 0xCC && first <= 0xD3 ? (size_t)1 << (first & 3) : first == 0xCB ? 8 : 0;
	if (first == 0xD9 || first == 0xDA)
		bytes = first - 0xD8;
	if ((size_t)(end - *at) < bytes)
		return NULL;
	uint64_t number = get(*at, bytes);
	*at += bytes;
	if (first == 0xCB) {
		double real;
		memcpy(&real, &number, sizeof real);
		return PyFloat_FromDouble(real);
	}
	if (first >= 0xCC && first <= 0xCF)
		return PyLong_FromUnsignedLongLong(number);
	if (first >= 0xD0 && first <= 0xD3)
		return PyLong_FromLongLong((int64_t)(number << (64 - 8 * bytes)) >> (64 - 8 * bytes));
	size_t size = first >= 0xA0 && first < 0xC0 ? first & 0x1F : number;
	if ((first < 0xA0 || first >= 0xC0) && !bytes)
		return NULL;
	if ((size_t)(end - *at) < size)
		return NULL;
	const char *text = (const char *)*at;
	*at += size;
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, "surrogatepass");
}

static PyObject *decode(PyObject *module, PyObject *data)
{
	if (!PyBytes_CheckExact(data))
		Py_RETURN_NOTIMPLEMENTED;
	const uint8_t *at = (const uint8_t *)PyBytes_AsString(data), *end = at + PyBytes_Size(data);
	if (at == end || (*at & 0xF0) != 0x80)
		Py_RETURN_NOTIMPLEMENTED;
	PyObject *bag = PyDict_New();
	for (unsigned count = *at++ & 0x0F; bag && count; count--) {
		PyObject *key = value_at(&at, end);
		PyObject *value = key && PyUnicode_CheckExact(key) ? value_at(&at, end) : NULL;
		if (!value || PyDict_SetItem(bag, key, value) < 0)
			Py_CLEAR(bag);
		Py_XDECREF(key);
		Py_XDECREF(value);
	}
	if (bag && at == end)
		return bag;
	Py_XDECREF(bag);
	PyErr_Clear(); /* it comes again there, in words */
	Py_RETURN_NOTIMPLEMENTED;
}

/* --- the module --------------------------------------------------------- */

/* use(Bag, Frame, Slot): the types to make, each derived from its base here. */
static PyObject *use(PyObject *module, PyObject *args)
{
	PyObject *bag, *frame, *slot;
	if (!PyArg_ParseTuple(args, "OOO", &bag, &frame, &slot))
		return NULL;
	if (!PyType_IsSubtype((PyTypeObject *)bag, bag_type) || !PyType_IsSubtype((PyTypeObject *)frame, frame_type) ||
	    !PyType_IsSubtype((PyTypeObject *)slot, slot_type)) {
		PyErr_SetString(PyExc_TypeError, "use: types that are not derived from those of core");
		return NULL;
	}
	made_bag = (PyTypeObject *)Py_NewRef(bag);
	made_frame = (PyTypeObject *)Py_NewRef(frame);
	made_slot = (PyTypeObject *)Py_NewRef(slot);
	Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
	{"use", use, METH_VARARGS, NULL},
	{"encode", encode, METH_O, NULL},
	{"decode", decode, METH_O, NULL},
	{0},
};

#define TYPE(name, type, flags, ...)                                                                                       \
	static PyType_Slot name##_slots[] = {{Py_tp_dealloc, name##_dealloc}, __VA_ARGS__, {0, NULL}};                     \
	static PyType_Spec name##_spec = {"tatolab.core." #type, sizeof(type), 0, Py_TPFLAGS_DEFAULT | (flags), name##_slots}

TYPE(lock, Lock, 0, {Py_tp_new, lock_new}, {Py_tp_methods, lock_methods});
TYPE(pin, Pin, Py_TPFLAGS_DISALLOW_INSTANTIATION, {Py_bf_getbuffer, pin_buffer}, {Py_tp_members, pin_members});
TYPE(bag, Bag, Py_TPFLAGS_BASETYPE, {Py_tp_new, bag_new}, {Py_tp_getset, bag_properties}, {Py_tp_members, bag_members});
TYPE(frame, Frame, Py_TPFLAGS_BASETYPE, {Py_tp_new, frame_new}, {Py_tp_getset, frame_properties},
     {Py_tp_members, frame_members});
TYPE(slot, Slot, Py_TPFLAGS_BASETYPE, {Py_tp_new, slot_new}, {Py_tp_members, slot_members});
TYPE(link, Link, Py_TPFLAGS_BASETYPE, {Py_tp_methods, link_methods}, {Py_tp_members, link_members});
TYPE(inbox, Inbox, Py_TPFLAGS_BASETYPE, {Py_tp_methods, inbox_methods}, {Py_tp_members, inbox_members});
TYPE(bell, Bell, Py_TPFLAGS_BASETYPE, {Py_tp_methods, bell_methods}, {Py_tp_members, bell_members});
TYPE(peer, Peer, Py_TPFLAGS_BASETYPE, {Py_tp_methods, peer_methods}, {Py_tp_members, peer_members});
TYPE(pool, Pool, Py_TPFLAGS_BASETYPE, {Py_tp_methods, pool_methods}, {Py_tp_members, pool_members});
TYPE(writer, Writer, Py_TPFLAGS_BASETYPE, {Py_tp_methods, writer_methods}, {Py_tp_members, writer_members});

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "core", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_core(void)
{
	PyTypeObject *inbox_type, *bell_type, *writer_type;
	struct {
		const char *name;
		PyType_Spec *spec;
		PyTypeObject **type;
	} types[] = {
		{"Lock", &lock_spec, &lock_type},    {"Pin", &pin_spec, &pin_type},	  {"Bag", &bag_spec, &bag_type},
		{"Frame", &frame_spec, &frame_type}, {"Slot", &slot_spec, &slot_type},	  {"Link", &link_spec, &link_type},
		{"Inbox", &inbox_spec, &inbox_type}, {"Bell", &bell_spec, &bell_type},	  {"Peer", &peer_spec, &peer_type},
		{"Pool", &pool_spec, &pool_type},    {"Writer", &writer_spec, &writer_type},
	};
	PyObject *module = PyModule_Create(&definition);
	for (size_t i = 0; module && i < sizeof types / sizeof *types; i++) {
		*types[i].type = (PyTypeObject *)PyType_FromSpec(types[i].spec);
		if (!*types[i].type || PyModule_AddObjectRef(module, types[i].name, (PyObject *)*types[i].type) < 0)
			Py_CLEAR(module);
	}
	if (module && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
		Py_CLEAR(module);
	return module;
}
