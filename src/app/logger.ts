import { pino } from 'pino';
import type { Facts, Log } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';

const logLevels = ['debug', 'info', 'warn', 'error', 'silent'] as const;
type LogLevel = (typeof logLevels)[number];

export function levelFrom(text: string | undefined): LogLevel {
  const level = logLevels.find((known) => known === (text ?? 'warn'));
  if (level !== undefined) return level;
  throw new StowageError(`'${text}' is not a log level`, {
    code: 'invalid',
    reason: 'log-level-invalid',
    action: `Use one of: ${logLevels.join(', ')}`,
  });
}

/** Logs JSON lines to standard error, or readable lines on a terminal. */
export function createLog(level: LogLevel, stream: NodeJS.WriteStream): Log {
  const person = stream.isTTY === true;
  const logger = pino(
    {
      level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { error: pino.stdSerializers.errWithCause },
    },
    { write: (line: string) => void stream.write(person ? readable(line) : line) },
  );
  return wrap(logger);
}

type Logger = Pick<pino.Logger<never>, 'debug' | 'info' | 'warn' | 'error'> & { child(facts: Facts): Logger };

function wrap(logger: Logger): Log {
  return {
    debug: (message, facts = {}) => logger.debug(facts, message),
    info: (message, facts = {}) => logger.info(facts, message),
    warn: (message, facts = {}) => logger.warn(facts, message),
    error: (message, facts = {}) => logger.error(facts, message),
    with: (facts: Facts) => wrap(logger.child(facts)),
  };
}

function readable(line: string): string {
  const { level, time, msg, ...facts } = JSON.parse(line) as Record<string, unknown>;
  const factWords = Object.entries(facts).map(
    ([key, value]) => `${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`,
  );
  return `${String(time).slice(11, 19)} ${String(level).padEnd(5)} ${[String(msg), ...factWords].join('  ')}\n`;
}
