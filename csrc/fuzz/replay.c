/* Runs a fuzz target over files, or all files of directories, without libFuzzer. */
#include "fuzz.h"

/* The time limit of one execution: a thousand times the normal time. */
enum { SECONDS_MAX = 10 };

static int executed;

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room) {
    (void)data;
    (void)size;
    (void)room;
    abort(); /* nothing is mutated here */
}

static int run(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)where;
    if (kind != FTW_F) return 0;
    FILE *file = fopen(path, "rb");
    size_t size = (size_t)info->st_size;
    uint8_t *data = malloc(size ? size : 1); /* the exact size, so that an overrun is detected */
    if (!file || !data || fread(data, 1, size, file) != size) {
        perror(path);
        exit(1);
    }
    fclose(file);
    printf("%s\n", path);
    fflush(stdout);
    alarm(SECONDS_MAX);
    LLVMFuzzerTestOneInput(data, size);
    alarm(0);
    free(data);
    executed++;
    return 0;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        nftw(argv[i], run, 16, FTW_PHYS);
    if (executed == 0) fprintf(stderr, "no file to run\n");
    return executed == 0;
}
