/*
 * The tasks of `lockify bench peers` for every lock service (crates/measure/peers/src/turn.rs), through libdlm. The loaded
 * library decides: the kernel's lock manager, or Lockify. One process is one client of one task. Its results go to
 * FILE.CLIENT. Linked with libdlm_lt a call does its own waiting; with libdlm (WITH_THREAD) the library's thread is told,
 * and wakes the caller.
 *
 *	locks hold LOCKSPACE FILE [NAME...]                 makes the lockspace, has NL locks; FILE appears; until it is killed
 *	locks TASK LOCKSPACE SECONDS FILE CLIENT CLIENTS    the lockspace is there; all clients begin together
 *
 * The first line of a result has the number of operations and their time in seconds. The others have each one's
 * nanoseconds. Of `wanted` they are when the lock was granted, when its unlock began, and whether somebody waited for it
 * then. Nodes' clocks begin at different times. So these are counts of the processor's counter, which all nodes see. The
 * first line has the nanoseconds of a count.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include <libdlm.h>

#define MOST (1 << 20)
#define NAMES 16         /* of an uncontended client, taken in turn: on several nodes, their directory nodes differ */
#define MOST_CREATED 20000 /* locks are kept */
#define REST_NS 1000000  /* with the lock, after somebody waits for it */
#define PATIENCE_NS 20000000000ull

/* Lockify's own flag, which Debian's header does not have: nobody else can know the name yet. */
#define NOTIFY 0x00080000

static dlm_lshandle_t ls;
static uint64_t times[MOST];
static size_t count;
static int blocks;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void blocking(void *arg)
{
	(void)arg;
	blocks = 1;
}

static void lock_with(const char *name, int mode, int flags, struct dlm_lksb *lksb, void (*bast)(void *))
{
	int status = dlm_ls_lock_wait(ls, mode, lksb, flags, name, strlen(name), 0, NULL, bast, NULL);

	if (status || lksb->sb_status) {
		fprintf(stderr, "lock %s: %d, status %d\n", name, status, lksb->sb_status);
		exit(1);
	}
}

static void lock(const char *name, int mode, struct dlm_lksb *lksb)
{
	lock_with(name, mode, 0, lksb, NULL);
}

static void unlock(struct dlm_lksb *lksb)
{
	uint64_t end = now() + PATIENCE_NS;

	dlm_ls_unlock_wait(ls, lksb->sb_lkid, 0, lksb);
	/* With libdlm_lt on the kernel, a blocking routine that is called meanwhile ends the wait. */
	while (lksb->sb_status == 0 && now() < end) {
		struct pollfd p = { .fd = dlm_ls_get_fd(ls), .events = POLLIN };

		if (poll(&p, 1, 100) == 1)
			dlm_dispatch(p.fd);
	}
	if (lksb->sb_status != EUNLOCK) {
		fprintf(stderr, "unlock: status %d\n", lksb->sb_status);
		exit(1);
	}
}

static void touch(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0644);

	if (fd < 0)
		fail(path);
	close(fd);
}

/* All clients begin together, those on other nodes, too: each is there when its file is. */
static void meet(const char *file, int client, int clients)
{
	uint64_t end = now() + PATIENCE_NS;
	char path[512];

	snprintf(path, sizeof(path), "%s.%d.here", file, client);
	touch(path);
	for (int other = 0; other < clients; other++) {
		snprintf(path, sizeof(path), "%s.%d.here", file, other);
		while (access(path, F_OK)) {
			if (now() > end)
				fail(path);
			usleep(500);
		}
	}
}

static uint64_t pair(const char *name)
{
	struct dlm_lksb lksb = { 0 };
	uint64_t begin = now();

	lock(name, LKM_EXMODE, &lksb);
	unlock(&lksb);
	return now() - begin;
}

static const char *own_name(char name[32], int client, int number)
{
	snprintf(name, 32, "own-%d-%d", client, number);
	return name;
}

/* From one client's unlock to the other's grant: who has the lock lets go only when the other waits. */
static void hand_over(FILE *out, uint64_t length)
{
	uint64_t begin = now(), end = begin + length, counted = __rdtsc();
	static struct { uint64_t granted, released; int waited; } steps[MOST / 16];
	double scale, seconds;

	while (now() < end && count < sizeof(steps) / sizeof(steps[0])) {
		struct dlm_lksb lksb = { 0 };

		blocks = 0;
		lock_with("wanted", LKM_EXMODE, 0, &lksb, blocking);
		steps[count].granted = __rdtsc();
		while (!blocks && now() < end) {
			struct pollfd p = { .fd = dlm_ls_get_fd(ls), .events = POLLIN };

			if (poll(&p, 1, 1) == 1)
				dlm_dispatch(p.fd);
		}
		if (blocks) {
			struct timespec rest = { .tv_nsec = REST_NS };

			nanosleep(&rest, NULL);
		}
		steps[count].waited = blocks;
		steps[count].released = __rdtsc();
		unlock(&lksb);
		count++;
	}
	seconds = (now() - begin) / 1e9;
	scale = seconds * 1e9 / (__rdtsc() - counted);
	fprintf(out, "%zu %f %.9f\n", count, seconds, scale);
	for (size_t i = 0; i < count; i++)
		fprintf(out, "%llu %llu %d\n", (unsigned long long)steps[i].granted,
			(unsigned long long)steps[i].released, steps[i].waited);
}

/* New names, each with a new file; the locks are kept. The clock stops when the other nodes know all of them. An unlock
 * waits for claims made before it. Neither lock manager has anything else left to tell. */
static uint64_t create(uint64_t length, int flags)
{
	static struct dlm_lksb locks[MOST_CREATED];
	char folder[] = "/tmp/created.XXXXXX", path[600], name[64];
	uint64_t begin, end, last;

	if (!mkdtemp(folder))
		fail("mkdtemp");
	begin = last = now();
	do {
		snprintf(name, sizeof(name), "new-%llx-%zx", (unsigned long long)begin, count);
		lock_with(name, LKM_EXMODE, flags, &locks[count], NULL);
		snprintf(path, sizeof(path), "%s/%s", folder, name);
		touch(path);
		end = now();
		times[count++] = end - last;
		last = end;
	} while (end - begin < length && count < MOST_CREATED);
	unlock(&locks[count - 1]);
	end = now();
	for (size_t i = 0; i < count; i++) {
		if (i < count - 1)
			unlock(&locks[i]);
		snprintf(path, sizeof(path), "%s/new-%llx-%zx", folder, (unsigned long long)begin, i);
		unlink(path);
	}
	rmdir(folder);
	return end - begin;
}

static void hold(const char *file, char **names)
{
	for (; *names; names++) {
		struct dlm_lksb lksb = { 0 };

		lock(*names, LKM_NLMODE, &lksb);
	}
	touch(file);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	uint64_t length, begin, took = 0;
	int client, clients, readers = -1;
	struct dlm_lksb master = { 0 };
	char path[512], name[32];
	const char *task;
	FILE *out;

	if (argc >= 4 && !strcmp(argv[1], "hold")) {
		ls = dlm_create_lockspace(argv[2], 0600);
		if (!ls)
			fail("dlm_create_lockspace");
		hold(argv[3], argv + 4);
	}
	if (argc != 7 || !(length = atof(argv[3]) * 1e9)) {
		fprintf(stderr, "usage: %s hold LOCKSPACE FILE [NAME...]\n"
				"       %s TASK LOCKSPACE SECONDS FILE CLIENT CLIENTS\n", argv[0], argv[0]);
		return 2;
	}
	task = argv[1];
	client = atoi(argv[5]);
	clients = atoi(argv[6]);
	ls = dlm_open_lockspace(argv[2]);
	if (!ls)
		fail("dlm_open_lockspace");
#ifdef WITH_THREAD
	if (dlm_ls_pthread_init(ls))
		fail("dlm_ls_pthread_init");
#endif
	snprintf(path, sizeof(path), "%s.%d", argv[4], client);
	out = fopen(path, "w");
	if (!out)
		fail(path);
	if (!strcmp(task, "again")) /* Keeps this node the name's master. */
		lock("again", LKM_NLMODE, &master);
	sscanf(task, "mixed%d", &readers);
	/* The cost of only the first lock of a name. */
	if (!strcmp(task, "own"))
		for (int n = 0; n < NAMES; n++)
			pair(own_name(name, client, n));
	else
		pair(readers < 0 ? task : "mixed");
	meet(argv[4], client, clients);
	begin = now();
	if (!strcmp(task, "wanted")) {
		hand_over(out, length);
	} else if (!strcmp(task, "create") || !strcmp(task, "claim")) {
		took = create(length, !strcmp(task, "claim") ? NOTIFY : 0);
	} else {
		do {
			if (!strcmp(task, "own")) {
				times[count] = pair(own_name(name, client, count % NAMES));
			} else if (!strcmp(task, "again") || !strcmp(task, "far")) {
				times[count] = pair(task);
			} else if (readers >= 0) {
				/* An even spread that differs between clients: 37 and 100 have no common divisor. */
				int shared = (count * 37 + client * 29) % 100 < (size_t)readers;
				struct dlm_lksb lksb = { 0 };
				uint64_t asked = now();

				lock("mixed", shared ? LKM_PRMODE : LKM_EXMODE, &lksb);
				times[count] = now() - asked;
				unlock(&lksb);
			} else {
				fprintf(stderr, "%s: no such task\n", task);
				return 2;
			}
			count++;
			took = now() - begin;
		} while (took < length && count < MOST);
	}
	if (took) {
		fprintf(out, "%zu %f\n", count, took / 1e9);
		for (size_t i = 0; i < count; i++)
			fprintf(out, "%llu\n", (unsigned long long)times[i]);
	}
	if (fclose(out))
		fail(path);
	return 0;
}
