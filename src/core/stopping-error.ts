import { StowageError } from './errors.ts';

/** The answer of every front end to requests during shutdown. */
export function stoppingError(): StowageError {
  return new StowageError('Stowage is stopping', {
    code: 'unavailable',
    reason: 'stopping',
    action: 'Try again when it runs.',
  });
}
