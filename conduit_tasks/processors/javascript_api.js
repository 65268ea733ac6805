// What scripts of custom.javascript find, and how records come in and go out as JSON.
(function () {
  const logs = [];
  const LOGS = 100;

  function raw(latin1) {
    const bytes = new Uint8Array(latin1.length);
    for (let i = 0; i < latin1.length; i++) bytes[i] = latin1.charCodeAt(i);
    return bytes;
  }
  function latin1(bytes) {
    let out = "";
    for (let i = 0; i < bytes.length; i += 8192) out += String.fromCharCode.apply(null, bytes.subarray(i, i + 8192));
    return out;
  }

  globalThis.RawData = function (text) {
    if (text instanceof Uint8Array) return text.slice();
    return raw(text === undefined ? "" : unescape(encodeURIComponent(String(text))));
  };
  globalThis.StructuredData = function () { return {}; };
  globalThis.Record = function () {
    return { Position: raw(""), Operation: "", Metadata: {}, Key: null, Payload: { Before: null, After: null } };
  };

  function event(level) {
    const fields = [];
    const write = (text) => { if (logs.length < LOGS) logs.push([level, [text, ...fields].filter(Boolean).join(" ")]); };
    const self = {
      Msg: (text) => write(String(text)),
      Msgf: (format, ...values) => write(String(format).replace(/%[+#]?[a-zA-Z]/g, () => String(values.shift()))),
      Send: () => write(""),
      Err: (error) => { fields.push("error=" + error); return self; },
    };
    for (const name of ["Str", "Int", "Int64", "Float64", "Bool", "Any", "Interface"])
      self[name] = (key, value) => { fields.push(key + "=" + (typeof value === "object" ? JSON.stringify(value) : value)); return self; };
    return self;
  }
  globalThis.logger = {};
  for (const level of ["Trace", "Debug", "Info", "Warn", "Error"]) logger[level] = () => event(level);

  // JSON knows whole numbers that a Number does not hold exactly; they become BigInt and go out as they came in.
  const exact = (key, value, context) =>
    typeof value === "number" && context && !Number.isSafeInteger(value) && /^-?\d+$/.test(context.source)
      ? BigInt(context.source) : value;
  BigInt.prototype.toJSON = function () { return JSON.rawJSON(this.toString()); };

  const inward = (data) => (data !== null && data.raw !== undefined ? raw(data.raw) : data && data.structured);
  function outward(data, name) {
    if (data === null || data === undefined) return null;
    if (data instanceof Uint8Array) return { raw: latin1(data) };
    if (typeof data !== "object" || Array.isArray(data))
      throw new TypeError(name + " must be RawData or StructuredData, not " + (Array.isArray(data) ? "an array" : typeof data));
    return { structured: data };
  }
  function result(rec) {
    if (rec === null || typeof rec !== "object" || typeof rec.Payload !== "object" || rec.Payload === null)
      throw new TypeError("process must return a Record, an array of them, or null");
    const metadata = {};
    for (const [name, value] of Object.entries(rec.Metadata || {}))
      if (value !== null && value !== undefined) metadata[name] = String(value);
    return {
      operation: rec.Operation ? String(rec.Operation) : null,
      metadata,
      key: outward(rec.Key, "Key"),
      before: outward(rec.Payload.Before, "Payload.Before"),
      after: outward(rec.Payload.After, "Payload.After"),
    };
  }

  return function (text, large) {
    const r = large ? JSON.parse(text, exact) : JSON.parse(text);
    const made = process({
      Position: raw(r.position), Operation: r.operation, Metadata: r.metadata, Key: inward(r.key),
      Payload: { Before: inward(r.before), After: inward(r.after) },
    });
    const records = made === null || made === undefined ? [] : Array.isArray(made) ? made.map(result) : [result(made)];
    return JSON.stringify([records, logs.splice(0)]);
  };
})()
