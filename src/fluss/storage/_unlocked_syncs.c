/* Syncs of a library without the GIL.
 *
 * The binding of RocksDB holds the GIL while it opens a database and while it makes a checkpoint. Both sync files, and
 * all threads of the process would wait for the disk. So calls of fsync and fdatasync in the library's table of imported
 * functions are led here. Where a thread has asked for it, the GIL is given up for the time of the call.
 *
 * This is for Linux; elsewhere `redirect` changes nothing.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__linux__) && defined(__LP64__)

#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static __thread int asked;

static int without_gil(int (*sync)(int), int fd)
{
    PyThreadState *state;
    int result, error;

    if (!asked || !PyGILState_Check())
        return sync(fd);
    state = PyEval_SaveThread();
    result = sync(fd);
    error = errno;
    PyEval_RestoreThread(state);
    errno = error;
    return result;
}

static int fsync_without_gil(int fd)
{
    return without_gil(fsync, fd);
}

static int fdatasync_without_gil(int fd)
{
    return without_gil(fdatasync, fd);
}

/* The tables of a loaded library. */
typedef struct {
    const char *path;
    ElfW(Addr) base;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *tables[2];
    size_t sizes[2];
    ElfW(Addr) sealed_from, sealed_to; /* read-only since the library was linked */
    int count;
} Library;

/* glibc has made the addresses of a dynamic section absolute, others leave them relative. */
static ElfW(Addr) absolute(const Library *library, ElfW(Addr) address)
{
    return address < library->base ? address + library->base : address;
}

static void read_dynamic(Library *library, const ElfW(Dyn) *entry)
{
    for (; entry->d_tag != DT_NULL; entry++) {
        ElfW(Addr) address = absolute(library, entry->d_un.d_ptr);

        switch (entry->d_tag) {
        case DT_SYMTAB: library->symbols = (const ElfW(Sym) *)address; break;
        case DT_STRTAB: library->names = (const char *)address; break;
        case DT_JMPREL: library->tables[0] = (const ElfW(Rela) *)address; break;
        case DT_PLTRELSZ: library->sizes[0] = entry->d_un.d_val; break;
        case DT_RELA: library->tables[1] = (const ElfW(Rela) *)address; break;
        case DT_RELASZ: library->sizes[1] = entry->d_un.d_val; break;
        }
    }
}

static int set_slot(Library *library, ElfW(Addr) slot, void *function)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)(slot & ~(ElfW(Addr))(page_bytes - 1));

    if (mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0)
        return -1;
    __atomic_store_n((void **)slot, function, __ATOMIC_SEQ_CST);
    if (slot >= library->sealed_from && slot < library->sealed_to)
        mprotect(page, page_bytes, PROT_READ);
    return 0;
}

static int redirect_imports(Library *library)
{
    int table;
    const ElfW(Rela) *entry;

    for (table = 0; table < 2; table++) {
        const ElfW(Rela) *end = library->tables[table] + library->sizes[table] / sizeof *entry;

        for (entry = library->tables[table]; entry < end; entry++) {
            const ElfW(Sym) *symbol = library->symbols + ELF64_R_SYM(entry->r_info);
            const char *name = library->names + symbol->st_name;
            void *function = NULL;

            if (symbol->st_shndx != SHN_UNDEF || entry->r_addend != 0)
                continue;
            if (strcmp(name, "fsync") == 0)
                function = (void *)fsync_without_gil;
            else if (strcmp(name, "fdatasync") == 0)
                function = (void *)fdatasync_without_gil;
            if (function == NULL)
                continue;
            if (set_slot(library, library->base + entry->r_offset, function) != 0)
                return -1;
            library->count++;
        }
    }
    return 0;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    Library *library = data;
    const ElfW(Dyn) *dynamic = NULL;
    int number;

    if (strcmp(info->dlpi_name, library->path) != 0)
        return 0;
    library->base = info->dlpi_addr;
    for (number = 0; number < info->dlpi_phnum; number++) {
        const ElfW(Phdr) *header = info->dlpi_phdr + number;

        if (header->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)(library->base + header->p_vaddr);
        } else if (header->p_type == PT_GNU_RELRO) {
            library->sealed_from = library->base + header->p_vaddr;
            library->sealed_to = library->sealed_from + header->p_memsz;
        }
    }
    if (dynamic != NULL)
        read_dynamic(library, dynamic);
    if (library->symbols != NULL && library->names != NULL && redirect_imports(library) != 0)
        library->count = -1;
    return 1;
}

static int redirect_library(const char *path)
{
    Library library = {.path = path};

    dl_iterate_phdr(visit, &library);
    return library.count;
}

#else

static int asked;

static int redirect_library(const char *path)
{
    (void)path;
    return 0;
}

#endif

static PyObject *redirect(PyObject *module, PyObject *argument)
{
    const char *path = PyUnicode_AsUTF8(argument);
    int count;

    if (path == NULL)
        return NULL;
    count = redirect_library(path);
    return count < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(count);
}

static PyObject *begin(PyObject *module, PyObject *unused)
{
    asked++;
    Py_RETURN_NONE;
}

static PyObject *end(PyObject *module, PyObject *unused)
{
    asked--;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"redirect", redirect, METH_O, "Lead the syncs of a loaded library here; returns how many imports were changed."},
    {"begin", begin, METH_NOARGS, "Give up the GIL in syncs of this thread from now on."},
    {"end", end, METH_NOARGS, "Take back the last `begin` of this thread."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_unlocked_syncs", "Syncs of a library without the GIL.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__unlocked_syncs(void)
{
    return PyModule_Create(&definition);
}
