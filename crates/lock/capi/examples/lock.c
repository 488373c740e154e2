/*
 * Runs one step at a time in the whole cluster: ./lock NAME
 *
 *     cc lock.c -llockify -o lock
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <lockify.h>

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, lockify_message());
	return 1;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "example";
	struct lockify_request request = LOCKIFY_REQUEST_INIT;
	lockify_t *session;
	lockify_space_t *space;
	lockify_lock_t *lock;
	int code;

	if (lockify_connect(NULL, &session))
		return failed("connect");
	if (lockify_open(session, "default", &space))
		return failed("open");

	request.timeout = 10000;
	code = lockify_lock(space, name, strlen(name), &request, &lock);
	if (code == LOCKIFY_TIMED_OUT)
		fprintf(stderr, "somebody else is at it\n");
	if (code)
		return failed("lock");

	/* Storage that is handed the token can refuse a holder that was declared dead. */
	printf("working on %s with fencing token %" PRIu64 "\n", name, lockify_token(lock));

	/* Work without the lock may have to be done again. */
	if (lockify_unlock(lock, NULL, 0))
		return failed("unlock");
	lockify_close(space);
	lockify_disconnect(session);
	return 0;
}
