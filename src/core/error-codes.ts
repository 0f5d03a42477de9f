/**
 * The meaning of each code in every protocol. Only this table decides about retries, HTTP and gRPC status, and exit status; a front end for
 * another protocol adds a column here instead of its own switch. `short` is for callers who may not read the error's message.
 */
export const errorCodes = {
  invalid: {
    http: 400,
    grpc: 3,
    exit: 2,
    retry: false,
    title: 'The request is not valid',
    short: 'the store cannot use its configured location',
  },
  'out-of-range': {
    http: 400,
    grpc: 11,
    exit: 2,
    retry: false,
    title: 'A value is out of range',
    short: 'the store cannot do this',
  },
  unauthenticated: {
    http: 401,
    grpc: 16,
    exit: 3,
    retry: false,
    title: 'No valid token was given',
    short: 'this needs a token',
  },
  denied: {
    http: 403,
    grpc: 7,
    exit: 3,
    retry: false,
    title: 'Not permitted',
    short: 'the store denies Stowage access: a permission problem',
  },
  'not-found': {
    http: 404,
    grpc: 5,
    exit: 4,
    retry: false,
    title: 'Not found',
    short: 'something that this needs is missing',
  },
  exists: {
    http: 409,
    grpc: 6,
    exit: 5,
    retry: false,
    title: 'It exists already',
    short: 'something other than a volume is already there',
  },
  conflict: {
    http: 409,
    grpc: 9,
    exit: 5,
    retry: false,
    title: 'The state of the object does not permit the request',
    short: 'the store cannot use its configured location',
  },
  'in-use': { http: 409, grpc: 9, exit: 6, retry: false, title: 'It is in use', short: 'it is in use' },
  stale: {
    http: 412,
    grpc: 10,
    exit: 5,
    retry: false,
    title: 'It changed since you read it',
    short: 'it changed in the meantime',
  },
  unsupported: {
    http: 422,
    grpc: 9,
    exit: 7,
    retry: false,
    title: 'Not supported here',
    short: 'the store cannot do this',
  },
  busy: {
    http: 409,
    grpc: 10,
    exit: 8,
    retry: true,
    title: 'Busy with another operation',
    short: 'another operation is in progress',
  },
  canceled: { http: 499, grpc: 1, exit: 130, retry: true, title: 'Cancelled', short: 'it was cancelled' },
  exhausted: {
    http: 507,
    grpc: 8,
    exit: 9,
    retry: false,
    title: 'No room left',
    short: 'no room is left in the store',
  },
  unavailable: {
    http: 503,
    grpc: 14,
    exit: 10,
    retry: true,
    title: 'Not available at the moment',
    short: 'the store is unreachable (network, server or disk failure)',
  },
  deadline: {
    http: 504,
    grpc: 4,
    exit: 10,
    retry: true,
    title: 'No answer in time',
    short: 'the store did not answer in time (network or server failure)',
  },
  internal: {
    http: 500,
    grpc: 13,
    exit: 1,
    retry: false,
    title: 'A fault in Stowage',
    short: 'Stowage failed to do this',
  },
} as const satisfies Record<
  string,
  { http: number; grpc: number; exit: number; retry: boolean; title: string; short: string }
>;

export type ErrorCode = keyof typeof errorCodes;

/** A newer version may send codes that this one does not know. */
export const isErrorCode = (code: string): code is ErrorCode => Object.hasOwn(errorCodes, code);
