"""Loads, lists, stops, starts and removes a stream, and prints the signals it sees.

A client as a desktop program would be: PyGObject, nothing of ours.
"""

from gi.repository import Gio, GLib

RUNTIME, ROOT = "com.tatolab.Runtime1", "/com/tatolab/Runtime1"
bus = Gio.bus_get_sync(Gio.BusType.SESSION, None)


def call(path: str, interface: str, method: str, arguments: GLib.Variant | None = None) -> tuple:
    return bus.call_sync(RUNTIME, path, interface, method, arguments, None, Gio.DBusCallFlags.NONE, 60_000, None).unpack()


def seen(_bus, _sender, path, _interface, signal, arguments) -> None:
    first, second, *_rest = arguments.unpack()
    what = second if signal == "PropertiesChanged" else first
    print(signal, path, what, flush=True)
    if signal == "InterfacesRemoved":
        loop.quit()


loop = GLib.MainLoop()
bus.signal_subscribe(RUNTIME, None, None, None, None, Gio.DBusSignalFlags.NONE, seen)
options = GLib.Variant("(ssa{sv})", ("/p", "", {"keep": GLib.Variant("b", True), "name": GLib.Variant("s", "by-python")}))
(stream,) = call(ROOT, f"{RUNTIME}.Manager", "RunStream", options)
(objects,) = call(ROOT, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects")
print("listed", objects[stream][f"{RUNTIME}.Stream"]["State"])
call(stream, f"{RUNTIME}.Stream", "Stop")
call(stream, f"{RUNTIME}.Stream", "Start")
try:
    call(stream, f"{RUNTIME}.Stream", "Expose", GLib.Variant("(sss)", ("nobody", "port", "public")))
except GLib.Error as error:
    print("refused", Gio.DBusError.get_remote_error(error))
call(stream, f"{RUNTIME}.Stream", "Remove")
GLib.timeout_add_seconds(10, loop.quit)
loop.run()
