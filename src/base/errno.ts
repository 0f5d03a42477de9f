/** The `code` of a failed system call, such as `ENOENT`, or another code that Node gives its errors. */
export const errnoOf = (thrown: unknown): string | undefined =>
  thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'string' ? thrown.code : undefined;

export const isErrno = (thrown: unknown, ...codes: readonly string[]): boolean => codes.includes(errnoOf(thrown) ?? '');
